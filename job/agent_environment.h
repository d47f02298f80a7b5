#pragma once
// Reads the variables that a scheduler sets for the agents of `ringmaster launch`, which it starts once per node: srun,
// mpirun (Open MPI), mpiexec (Hydra: MPICH, Intel MPI), an indexed Job in Kubernetes.

#include <optional>
#include <string>

#include "job/environment.h"

namespace ring {

struct AgentEnvironment {
  // "srun", "Slurm" (an allocation without a step), "mpirun", "mpiexec" or "Kubernetes"; empty if there is none.
  std::string source;
  int agents = 0;                         // number of agents that were started; 0 if unknown
  int here = 1;                           // number of agents on this node; 1 if unknown
  int index = -1;                         // index of this agent, starting at 0; -1 if unknown
  int nodes = 1;                          // minimum number of nodes in the job
  std::optional<Endpoint> endpoint = {};  // rendezvous address, which is on the first node
  std::string job;                        // job id; empty if unknown
};

// Throws Error, with the variable's name, if a variable is malformed or contradicts another variable.
AgentEnvironment parse_agent_environment(const Environment&);

}  // namespace ring
