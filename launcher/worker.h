#pragma once
// One worker process: started in its own process group, with a page of memory shared with the agent; the kernel kills
// it if the agent dies.

#include <sys/types.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "job/environment.h"
#include "job/worker_status.h"
#include "launcher/hang_detector.h"
#include "launcher/output.h"
#include "launcher/rank_state.h"

namespace ring {

// How a process ended.
struct Ending {
  int code = 0;    // exit code, if it was not killed
  int signal = 0;  // signal that killed it, or 0
  bool ok() const { return code == 0 && signal == 0; }
  int exit_code() const { return signal ? 128 + signal : code; }  // as a shell reports it
};
std::string describe(const Ending&);  // "exited with code 3", "was killed by signal 9 (Killed)"

struct WorkerCommand {
  std::string program;                 // path of the executable
  std::vector<std::string> arguments;  // argv[0] included
  Environment environment;
  std::vector<int> inherited{};                    // descriptors that stay open in the program
  std::vector<int> cores = {}, memory_nodes = {};  // cores it is bound to, NUMA nodes it prefers; empty means all
  // Inherits the agent's standard output (a terminal stays one); otherwise it goes into the pipe.
  bool keep_stdout = false;
};

class Worker {
 public:
  // Throws Error if the process cannot be started.
  Worker(int rank, const WorkerCommand& command, std::unique_ptr<SharedStatus> page, std::string prefix, int console,
         const std::string& log_path, const HangRules& rules = {});
  ~Worker();  // kills the process if it is still running
  Worker(const Worker&) = delete;
  Worker& operator=(const Worker&) = delete;

  int rank() const { return rank_; }
  pid_t pid() const { return pid_; }
  int pidfd() const { return pidfd_.get(); }  // readable when the process has ended; -1 if the kernel has no pidfds
  WorkerOutput& output() { return *output_; }
  const WorkerOutput& output() const { return *output_; }

  const WorkerStatus& page() const { return **page_; }
  bool is_hanging();        // call several times a second
  RankState state() const;  // current state, or the last one of a dead worker; without node and host

  bool alive() const { return !ending_; }
  const std::optional<Ending>& ending() const { return ending_; }
  bool reap();              // returns true if the process has just ended
  void signal(int number);  // sends to the whole process group

 private:
  int rank_;
  pid_t pid_ = -1;
  Fd pidfd_;
  std::unique_ptr<SharedStatus> page_;
  std::unique_ptr<WorkerOutput> output_;
  HangDetector hang_detector_;
  std::optional<Ending> ending_;
};

}  // namespace ring
