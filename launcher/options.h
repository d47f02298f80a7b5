#pragma once
// What `ringmaster launch` is told.

#include <chrono>
#include <csignal>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "job/job_board.h"
#include "job/socket.h"
#include "launcher/hang_judge.h"
#include "launcher/places.h"

namespace ring {

// Which local ranks something holds for.
struct LocalRanks {
  bool all = false;
  std::map<int, bool> some = {};
  bool has(int local_rank) const { return all || (some.contains(local_rank) && some.at(local_rank)); }
};

inline constexpr const char* kNoId = "none";  // torchrun's word for a job without a name

struct LaunchOptions {
  int processes = 1;  // on this node
  int least_nodes = 1, most_nodes = 1;
  int node_rank = -1;                     // -1: by arrival
  std::optional<Endpoint> endpoint = {};  // of node 0; none: this machine alone
  std::string rdzv_id = kNoId;
  std::string secret;      // empty: a random one, of one node
  std::string local_addr;  // numeric, at which others reach this node; empty: the one that reaches node 0
  int max_restarts = 0;
  int threads_per_worker = 0;  // 0: the cores of this process, divided evenly
  NumaBinding numa_binding = NumaBinding::automatic;
  bool on_gpus = true;          // the workers take GPUs where there is one for each; false: they were told not to
  std::string log_dir;          // attempt_N/rankN.log in it; empty: lines of ranks > 0 go to the console with a prefix
  bool gpu_core_dumps = false;  // with log_dir: of GPUs that fail, to attempt_N/rankN.cudacore
  LocalRanks tee, redirects;    // with log_dir: to file and console, or to the file alone
  std::optional<LocalRanks> shown = {};  // on the console at all; none: every rank
  int comm_timeout_seconds = 0;          // of one collective operation; 0: the workers' default
  std::vector<int> signals = {SIGINT, SIGTERM, SIGHUP, SIGUSR1, SIGUSR2};  // that are passed on
  std::chrono::milliseconds join_timeout{600'000};  // for all nodes to come, at first and after each failure
  std::chrono::milliseconds last_call{30'000};      // for more than least_nodes, at first
  std::chrono::milliseconds return_timeout{2'000};  // for lost nodes to come again, where least_nodes are left
  std::chrono::milliseconds silence{30'000};        // of an agent, that counts as its loss
  std::chrono::milliseconds monitor_interval{200};  // between looks at the workers, where no event wakes the agent
  HangRules hang;                                   // when workers make no progress
  std::chrono::milliseconds grace{1000};            // for the others to end after a failure, then SIGKILL
  std::chrono::milliseconds stop_timeout{300'000};  // for workers to checkpoint and exit, after SIGINT or SIGTERM
  std::vector<std::string> command;                 // the workers' arguments: "train", "config.yaml", ...
  std::string program = "/proc/self/exe";
  std::string machine_root = "/";  // see read_machine()
  JobBoard* board = nullptr;       // to write on, for a dashboard
};

}  // namespace ring
