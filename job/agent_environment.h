#pragma once
// What a scheduler says to the agents of `ringmaster launch` that it starts, one on each node: srun, mpirun (Open MPI),
// mpiexec (Hydra: MPICH, Intel MPI), an indexed Job of Kubernetes.

#include <optional>
#include <string>

#include "job/environment.h"

namespace ring {

struct AgentEnvironment {
  std::string source;                     // "srun", "mpirun", "mpiexec", "Kubernetes"; empty: nobody says anything
  int agents = 0;                         // that were started; 0: not told
  int here = 1;                           // of them on this node, as far as it is told
  int index = -1;                         // of this agent, from 0 on; -1: not told
  int nodes = 1;                          // that the job has at least
  std::optional<Endpoint> endpoint = {};  // where they can meet: on the first node
  std::string job;                        // its id; empty: not told
};

// Error: a variable is malformed, or contradicts another one; it is named.
AgentEnvironment parse_agent_environment(const Environment&);

}  // namespace ring
