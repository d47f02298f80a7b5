#pragma once
// Options of `ringmaster launch`.

#include <chrono>
#include <csignal>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "job/job_board.h"
#include "job/socket.h"
#include "launcher/hang_detector.h"
#include "launcher/worker_bindings.h"

namespace ring {

// A set of local ranks.
struct LocalRanks {
  bool all = false;
  std::map<int, bool> some = {};
  bool has(int local_rank) const { return all || (some.contains(local_rank) && some.at(local_rank)); }
};

inline constexpr const char* kNoId = "none";  // torchrun's id of a job without a name

struct LaunchOptions {
  int processes = 1;  // workers on this node
  int min_nodes = 1, max_nodes = 1;
  int node_rank = -1;                     // -1 assigns nodes by arrival
  std::optional<Endpoint> endpoint = {};  // rendezvous address on node 0; nullopt for a single node
  std::string rdzv_id = kNoId;
  std::string secret;      // empty selects a random one, for a single node only
  std::string local_addr;  // numeric, where other nodes reach this one; empty: address of the connection to node 0
  int max_restarts = 0;
  int threads_per_worker = 0;  // 0 divides the cores of this process evenly
  NumaBinding numa_binding = NumaBinding::automatic;
  bool on_gpus = true;  // workers use GPUs if there is one for each; false if they were told not to
  // Logs go to attempt_N/rankN.log in it. If empty, lines of ranks > 0 go to the console with a prefix.
  std::string log_dir;
  bool gpu_core_dumps = false;           // with log_dir: failing GPUs dump to attempt_N/rankN.cudacore
  LocalRanks tee, redirects;             // with log_dir: ranks written to file and console, or to the file only
  std::optional<LocalRanks> shown = {};  // ranks shown on the console; nullopt shows all
  int comm_timeout_seconds = 0;          // limit of one collective operation; 0 keeps the workers' default
  std::vector<int> signals = {SIGINT, SIGTERM, SIGHUP, SIGUSR1, SIGUSR2};  // passed on to the workers
  std::chrono::milliseconds join_timeout{600'000};  // for all nodes to join, at first and after each failure
  std::chrono::milliseconds last_call{30'000};      // wait for more nodes than min_nodes, at first
  std::chrono::milliseconds return_timeout{2'000};  // for lost nodes to rejoin, if min_nodes are still here
  std::chrono::milliseconds silence{30'000};        // silence after which an agent counts as lost
  std::chrono::milliseconds monitor_interval{200};  // polling interval of the workers if no event wakes the agent
  HangRules hang;                                   // decides when workers hang
  std::chrono::milliseconds grace{1000};            // for the other workers to end after a failure, then SIGKILL
  std::chrono::milliseconds stop_timeout{300'000};  // for workers to checkpoint and exit, after SIGINT or SIGTERM
  std::vector<std::string> command;                 // arguments of the workers: "train", "config.yaml", ...
  std::string program = "/proc/self/exe";
  std::string machine_root = "/";  // see read_machine()
  JobBoard* board = nullptr;       // written to, for a dashboard; may be null
};

}  // namespace ring
