#pragma once
// Reads what a scheduler tells the agents of `ringmaster launch` that it starts, one on each node: srun, mpirun (Open
// MPI), mpiexec (Hydra: MPICH, Intel MPI), an indexed Job of Kubernetes.

#include <optional>
#include <string>

#include "job/environment.h"

namespace ring {

struct AgentEnvironment {
  // "srun", "Slurm" (an allocation without a step), "mpirun", "mpiexec" or "Kubernetes"; empty if none is found
  std::string source;
  int agents = 0;                         // number of agents started; 0 if unknown
  int here = 1;                           // agents on this node; 1 if unknown
  int index = -1;                         // index of this agent, from 0; -1 if unknown
  int nodes = 1;                          // minimum number of nodes of the job
  std::optional<Endpoint> endpoint = {};  // rendezvous address, on the first node
  std::string job;                        // id of the job; empty if unknown
};

// Throws Error, with the variable's name, if a variable is malformed or contradicts another one.
AgentEnvironment parse_agent_environment(const Environment&);

}  // namespace ring
