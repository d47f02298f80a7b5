#pragma once
// Starts the program under test like a user.

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include <sys/types.h>

namespace ring::test {

struct Finished {
  int code = 0;        // exit code; -signal if a signal ended it
  std::string output;  // standard output and standard error
};

class Process {
 public:
  using Environment = std::vector<std::pair<std::string, std::string>>;
  // `prepare` runs in the child before the program replaces it.
  explicit Process(const std::vector<std::string>& command, const Environment& extra = {},
                   const std::function<void()>& prepare = {});
  ~Process();  // kills the process
  Process(const Process&) = delete;
  Process& operator=(const Process&) = delete;

  void signal(int number) const;
  bool running() const;  // not ended yet
  Finished wait();       // waits until the process ends
  pid_t pid() const { return pid_; }

 private:
  pid_t pid_ = -1;
  int out_ = -1;
};

inline Finished run_process(const std::vector<std::string>& command, const Process::Environment& extra = {}) {
  return Process(command, extra).wait();
}

}  // namespace ring::test
