#pragma once
// The agent of one node: hosts the store, starts the workers, watches them, and ends them together. The first worker
// that fails is named, with its last lines, and an error that several end with is said once; the others are ended.
// SIGINT, SIGTERM, SIGHUP, SIGUSR1 and SIGUSR2 are passed on.

#include <chrono>
#include <string>
#include <vector>

namespace ring {

struct LaunchOptions {
  int processes = 1;
  int threads_per_worker = 0;    // 0: the cores of this process, divided evenly
  std::string log_dir;           // one file per rank; empty: lines of ranks > 0 go to standard error with a prefix
  int comm_timeout_seconds = 0;  // of one collective operation; 0: the workers' default
  std::chrono::milliseconds grace{1000};            // for the others to end after a failure, then SIGKILL
  std::chrono::milliseconds stop_timeout{300'000};  // for workers to checkpoint and exit, after SIGINT or SIGTERM
  std::vector<std::string> command;                 // the workers' arguments: "train", "config.yaml", ...
  std::string program = "/proc/self/exe";
};

// Returns the exit code: 0 when all workers returned 0, else the first failure's (128 + signal when it was killed).
// Error: options that make no sense, a worker that cannot be started, a log directory that cannot be written.
int run_agent(const LaunchOptions& options);

}  // namespace ring
