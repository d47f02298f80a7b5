#pragma once
// One worker process: started in its own process group, with a page of memory that it shares with the agent. If the
// agent dies, the kernel kills the worker.

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

struct Ending {
  int code = 0;    // exit code, if no signal killed the process
  int signal = 0;  // signal that killed the process, or 0
  bool ok() const { return code == 0 && signal == 0; }
  int exit_code() const { return signal ? 128 + signal : code; }  // returns the code that a shell would report
};
std::string describe(const Ending&);  // e.g. "exited with code 3", "was killed by signal 9 (Killed)"

struct WorkerCommand {
  std::string program;                 // path of the executable
  std::vector<std::string> arguments;  // includes argv[0]
  Environment environment;
  std::vector<int> inherited{};        // file descriptors that stay open in the program
  std::vector<int> cores = {};         // cores to which it is bound; empty means all
  std::vector<int> memory_nodes = {};  // NUMA nodes whose memory it prefers; empty means all
  // True if the worker inherits the agent's standard output, so that a terminal stays a terminal; false to redirect its
  // output to the pipe.
  bool keep_stdout = false;
};

class Worker {
 public:
  // page: memory that worker and agent share. prefix, console, log_path: see WorkerOutput. Throws Error if the process
  // cannot be started.
  Worker(int rank, const WorkerCommand& command, std::unique_ptr<SharedStatus> page, std::string prefix, int console,
         const std::string& log_path, const HangRules& rules = {});
  ~Worker();  // kills the process if it is still running
  Worker(const Worker&) = delete;
  Worker& operator=(const Worker&) = delete;

  int rank() const { return rank_; }
  void set_rank(int rank, std::string prefix, int console);  // for the next attempt; prefix, console: see WorkerOutput
  pid_t pid() const { return pid_; }
  int pidfd() const { return pidfd_.get(); }  // readable once the process has ended; -1 if the kernel has no pidfds
  WorkerOutput& output() { return *output_; }
  const WorkerOutput& output() const { return *output_; }

  // Returns the status page that the worker and the agent share.
  const WorkerStatus& page() const { return **page_; }
  WorkerStatus& page() { return **page_; }
  bool is_hanging();        // call several times a second
  RankState state() const;  // current state, or the last one if the worker is dead; without node and host

  bool alive() const { return !ending_; }
  const std::optional<Ending>& ending() const { return ending_; }
  bool reap();              // returns true if the process has just ended
  void signal(int number);  // sends the signal to the whole process group

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
