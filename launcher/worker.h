#pragma once
// One worker process: started in a process group of its own, with a page of memory that it shares with the agent, and
// killed by the kernel when the agent dies.

#include <sys/types.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "job/environment.h"
#include "job/worker_page.h"
#include "launcher/hang_judge.h"
#include "launcher/output.h"
#include "launcher/rank_state.h"

namespace ring {

// How a process ended.
struct Ending {
  int code = 0;    // exit code, when it was not killed
  int signal = 0;  // that killed it, or 0
  bool ok() const { return code == 0 && signal == 0; }
  int exit_code() const { return signal ? 128 + signal : code; }  // as a shell would report it
};
std::string describe(const Ending&);  // "exited with code 3", "was killed by signal 9 (Killed)"

struct WorkerCommand {
  std::string program;                 // path of the executable
  std::vector<std::string> arguments;  // argv[0] included
  Environment environment;
  std::vector<int> inherited{};                    // descriptors that the program keeps
  std::vector<int> cores = {}, memory_nodes = {};  // that it is bound to, and whose memory it prefers; empty: any
  bool keep_stdout = false;  // standard output stays the agent's (a terminal stays one); otherwise into the pipe
};

class Worker {
 public:
  // Error: the process cannot be started.
  Worker(int rank, const WorkerCommand& command, std::unique_ptr<SharedPage> page, std::string prefix, int console,
         const std::string& log_path, const HangRules& rules = {});
  ~Worker();  // kills what is left of it
  Worker(const Worker&) = delete;
  Worker& operator=(const Worker&) = delete;

  int rank() const { return rank_; }
  pid_t pid() const { return pid_; }
  int pidfd() const { return pidfd_.get(); }  // readable when it has ended; -1 where the kernel has none
  WorkerOutput& output() { return *output_; }
  const WorkerOutput& output() const { return *output_; }

  const WorkerPage& page() const { return **page_; }
  bool hangs();             // to be asked several times a second
  RankState state() const;  // where it is, or was when it died; without node and host

  bool alive() const { return !ending_; }
  const std::optional<Ending>& ending() const { return ending_; }
  bool reap();              // true when it has just ended
  void signal(int number);  // to its whole group

 private:
  int rank_;
  pid_t pid_ = -1;
  Fd pidfd_;
  std::unique_ptr<SharedPage> page_;
  std::unique_ptr<WorkerOutput> output_;
  HangJudge judge_;
  std::optional<Ending> ending_;
};

}  // namespace ring
