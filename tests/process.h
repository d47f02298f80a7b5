#pragma once
// Starts the program under test as a user would.

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include <sys/types.h>

namespace ring::test {

struct Finished {
  int code = 0;        // exit code; -signal when one ended it
  std::string output;  // standard output and error together
};

class Process {
 public:
  using Environment = std::vector<std::pair<std::string, std::string>>;
  // `prepare` runs in the child, before the program replaces it.
  explicit Process(const std::vector<std::string>& command, const Environment& extra = {},
                   const std::function<void()>& prepare = {});
  ~Process();  // kills it
  Process(const Process&) = delete;
  Process& operator=(const Process&) = delete;

  void signal(int number) const;
  bool running() const;  // not yet ended
  Finished wait();       // for the end
  pid_t pid() const { return pid_; }

 private:
  pid_t pid_ = -1;
  int out_ = -1;
};

inline Finished run_process(const std::vector<std::string>& command, const Process::Environment& extra = {}) {
  return Process(command, extra).wait();
}

}  // namespace ring::test
