#pragma once
// Reads this process's rank, world size and store address from the variables of its launcher: ours (RINGMASTER_*), else
// torchrun, mpirun (Open MPI), mpiexec (MPICH, Intel MPI), srun, or plain RANK and WORLD_SIZE; without any, the process
// is alone. Ranks on several nodes that another launcher starts need RINGMASTER_SECRET. Throws Error, with the
// variable's name, if a variable is missing, malformed or contradicts another one.

#include <string>

#include "job/options.h"
#include "job/socket.h"
#include "job/variables.h"

namespace ring {

// Maximum number of processes of a run. A larger number is a mistake, rejected before anything is allocated for it.
inline constexpr int kMaxProcesses = 1 << 16;
inline constexpr int kMaxSeconds = 1'000'000;  // maximum of any timeout in the environment

struct WorkerEnvironment {
  std::string source = "single";  // "ringmaster", "torchrun", "mpirun", "mpiexec", "srun", "environment", "single"
  int rank = 0, world = 1;
  int local_rank = 0, local_world = 1;
  Endpoint store;           // address of the store if world > 1; the host may be a name
  int store_ports = 1;      // rank 0 listens on the first free one of this many ports, from store.port on
  bool host_store = false;  // rank 0 must serve the store; false if the launcher serves it
  std::string cookie;
  int node = 0, nodes = 1;  // set by `ringmaster launch`
  int restarts = 0;         // restarts of the job before this process started
  std::string note;         // warning about something unusual; may be empty
};

WorkerEnvironment parse_environment(const Environment&);
// Reads RINGMASTER_ADDRESS, RINGMASTER_COMM_TIMEOUT (seconds, for connecting and for each operation),
// RINGMASTER_LIVENESS (seconds) and RINGMASTER_COPY_ENGINES (0, 1).
CommOptions parse_comm_options(const Environment&);
// Returns the variables of this process, with the cookie of own_status() (job/worker_status.h), if any, as
// RINGMASTER_COOKIE.
Environment current_environment();

// Returns the command with which the user of this job's launcher starts `ringmaster COMMAND` in the same number of
// processes.
std::string start_command(const WorkerEnvironment&, const std::string& command);

}  // namespace ring
