#pragma once
// Reads this process's rank, world size and store address from the variables of its launcher: ours (RINGMASTER_*), else
// torchrun, mpirun (Open MPI), mpiexec (MPICH, Intel MPI), srun, or plain RANK and WORLD_SIZE. Without any of them, the
// process is alone. If a different launcher starts ranks on several nodes, RINGMASTER_SECRET must be set. Throws Error,
// with the variable's name, if a variable is missing, malformed or contradicts another variable.

#include <string>

#include "job/options.h"
#include "job/socket.h"
#include "job/variables.h"

namespace ring {

// Maximum number of processes in a run. A larger number is a mistake, and is rejected before anything is allocated for
// it.
inline constexpr int kMaxProcesses = 1 << 16;
inline constexpr int kMaxSeconds = 1'000'000;  // upper bound on every timeout in the environment

struct WorkerEnvironment {
  std::string source = "single";  // "ringmaster", "torchrun", "mpirun", "mpiexec", "srun", "environment", "single"
  int rank = 0, world = 1;
  int local_rank = 0, local_world = 1;
  Endpoint store;           // address of the store if world > 1; the host may be a name
  int store_ports = 1;      // rank 0 listens on the first free port of this many ports, starting at store.port
  bool host_store = false;  // true if rank 0 must serve the store, false if the launcher serves it
  std::string cookie;
  int node = 0, nodes = 1;  // set by `ringmaster launch`
  int restarts = 0;         // number of restarts of the job before this process was started
  std::string note;         // warning about something unusual, or empty
};

WorkerEnvironment parse_environment(const Environment&);
// Reads RINGMASTER_ADDRESS, RINGMASTER_COMM_TIMEOUT (seconds, for connecting and for each operation),
// RINGMASTER_LIVENESS (seconds) and RINGMASTER_COPY_ENGINES (0, 1).
CommOptions parse_comm_options(const Environment&);
// Returns the variables of this process. The cookie of own_status() (job/worker_status.h), if there is one, is added as
// RINGMASTER_COOKIE.
Environment current_environment();

// Returns the command with which a user of this job's launcher starts `ringmaster COMMAND` with the same number of
// processes.
std::string start_command(const WorkerEnvironment&, const std::string& command);

}  // namespace ring
