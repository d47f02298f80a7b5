#pragma once
// A simulated machine with its own network and name: a pair of namespaces that a process keeps open. The kernel removes
// them with that process, however the test ends.

#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "tests/process.h"

namespace ring::test {

class Node {
 public:
  // Throws std::runtime_error if this process may not create namespaces.
  explicit Node(const std::string& name) {
    int ready[2];
    if (pipe2(ready, O_CLOEXEC) != 0) throw std::runtime_error("pipe");
    pid_ = fork();
    if (pid_ < 0) throw std::runtime_error("fork");
    if (pid_ == 0) {
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      int error = unshare(CLONE_NEWNET | CLONE_NEWUTS) == 0 && sethostname(name.data(), name.size()) == 0 ? 0 : errno;
      if (write(ready[1], &error, sizeof error) != sizeof error) _exit(1);
      for (;;) pause();
    }
    int error = EIO;
    const ssize_t told = read(ready[0], &error, sizeof error);
    close(ready[0]);
    close(ready[1]);
    if (told == sizeof error && error == 0) return;
    stop();
    throw std::runtime_error(std::string("no network namespace: ") + std::strerror(error));
  }
  ~Node() { stop(); }
  Node(const Node&) = delete;
  Node& operator=(const Node&) = delete;

  pid_t pid() const { return pid_; }
  std::unique_ptr<Process> start(const std::vector<std::string>& command,
                                 const Process::Environment& environment = {}) const {
    return std::make_unique<Process>(command, environment, [this] { enter(); });
  }
  Finished run(const std::vector<std::string>& command) const { return start(command)->wait(); }

 private:
  void enter() const {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    for (const char* kind : {"net", "uts"}) {
      const int fd = open(("/proc/" + std::to_string(pid_) + "/ns/" + kind).c_str(), O_RDONLY | O_CLOEXEC);
      if (fd < 0 || setns(fd, 0) != 0) _exit(126);
    }
  }
  void stop() {
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
  }

  pid_t pid_ = -1;
};

}  // namespace ring::test
