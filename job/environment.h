#pragma once
// Who this process is: rank, world size and where the store is, from the environment that a launcher left: ours
// (RINGMASTER_*), else torchrun, mpirun (Open MPI), mpiexec (MPICH), srun, plain RANK and WORLD_SIZE; none: one
// process. Ranks that others start on several nodes need RINGMASTER_SECRET. What is missing, malformed or contradictory
// is an Error that names it.

#include <string>

#include "job/options.h"
#include "job/socket.h"
#include "job/variables.h"

namespace ring {

// The most that a run may have. What is larger is a mistake, and is refused before anything is counted up to it.
inline constexpr int kMostProcesses = 1 << 16;
inline constexpr int kMostSeconds = 1'000'000;  // that somebody may be told to wait

struct WorkerEnvironment {
  std::string source = "single";  // "ringmaster", "torchrun", "mpirun", "mpiexec", "srun", "environment", "single"
  int rank = 0, world = 1;
  int local_rank = 0, local_world = 1;
  Endpoint store;           // of a world of several ranks; the host may be a name
  int store_ports = 1;      // rank 0 takes the first free one of this many, from store.port on
  bool host_store = false;  // nobody serves it yet: rank 0 has to
  std::string cookie;
  int node = 0, nodes = 1;  // of `ringmaster launch`
  int restarts = 0;         // of all workers before this one was started
  std::string note;         // something odd that is worth a warning; empty otherwise
};

WorkerEnvironment parse_environment(const Environment&);
// RINGMASTER_ADDRESS, RINGMASTER_COMM_TIMEOUT (for the others to arrive, and for one operation) and RINGMASTER_LIVENESS
// (seconds), RINGMASTER_COPY_ENGINES (0, 1)
CommOptions parse_comm_options(const Environment&);
Environment current_environment();  // with the cookie of own_page() (job/worker_page.h), where there is one

// What the user of this job's launcher types to run `ringmaster COMMAND` in as many processes again.
std::string start_command(const WorkerEnvironment&, const std::string& command);

}  // namespace ring
