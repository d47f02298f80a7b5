#pragma once
// Options of `ringmaster launch`.

#include <chrono>
#include <csignal>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "job/job_board.h"
#include "job/socket.h"
#include "launcher/hang_detector.h"
#include "launcher/worker_bindings.h"

namespace ring {

// A set of ranks on this node: all of them if `all`, else those in `some`.
struct LocalRanks {
  bool all = false;
  std::set<int> some = {};
  bool has(int local_rank) const { return all || some.contains(local_rank); }
};

inline constexpr const char* kNoId = "none";  // id that torchrun uses for a job without a name

struct LaunchOptions {
  int processes = 1;  // number of workers on this node
  int min_nodes = 1, max_nodes = 1;
  int node_rank = -1;                     // -1 assigns nodes in order of arrival
  std::optional<Endpoint> endpoint = {};  // rendezvous address on node 0; nullopt for a single node
  std::string rdzv_id = kNoId;
  std::string secret;  // if empty, a random secret is used, which only works for a single node
  // Numeric address at which other nodes reach this one; if empty, the address of the connection to node 0.
  std::string local_addr;
  int max_restarts = 0;
  int threads_per_worker = 0;  // 0 divides this process's cores evenly
  NumaBinding numa_binding = NumaBinding::automatic;
  bool on_gpus = true;  // true if workers use GPUs when each can have one; false if they were told not to
  // Logs are written to attempt_N/rankN.log in this directory. If it is empty, lines of ranks > 0 go to the console
  // with a prefix.
  std::string log_dir;
  bool gpu_core_dumps = false;  // with log_dir: failing GPUs write core dumps to attempt_N/rankN.cudacore
  LocalRanks tee, redirects;    // with log_dir: ranks whose output goes to file and console, or only to the file
  std::optional<LocalRanks> shown = {};  // ranks shown on the console; nullopt shows all
  int comm_timeout_seconds = 0;          // limit of one collective operation; 0 keeps the workers' default
  std::vector<int> signals = {SIGINT, SIGTERM, SIGHUP, SIGUSR1, SIGUSR2};  // signals that are passed on to the workers
  std::chrono::milliseconds join_timeout{600'000};  // time for all nodes to join, at the start and after each failure
  std::chrono::milliseconds last_call{30'000};      // time to wait for more nodes than min_nodes, at the start
  std::chrono::milliseconds return_timeout{2'000};  // time for lost nodes to rejoin; then min_nodes suffice
  std::chrono::milliseconds silence{30'000};        // time after which a silent agent counts as lost
  std::chrono::milliseconds monitor_interval{200};  // interval at which workers are polled if no event wakes the agent
  HangRules hang;                                   // decides when workers hang
  std::chrono::milliseconds grace{1000};            // time for the other workers to end after a failure, before SIGKILL
  std::chrono::milliseconds stop_timeout{300'000};  // time for workers to checkpoint and exit, after SIGINT or SIGTERM
  std::vector<std::string> command;                 // arguments of the workers, e.g. "train", "config.yaml"
  std::string program = "/proc/self/exe";
  std::string machine_root = "/";  // see read_machine()
  JobBoard* board = nullptr;       // the agent writes to it, for a dashboard; may be null
};

}  // namespace ring
