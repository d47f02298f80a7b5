#include "tests/process.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <stdexcept>

namespace ring::test {

Process::Process(const std::vector<std::string>& command, const Environment& extra,
                 const std::function<void()>& prepare) {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) throw std::runtime_error("pipe");
  std::vector<char*> argv;
  for (const std::string& word : command) argv.push_back(const_cast<char*>(word.c_str()));
  argv.push_back(nullptr);
  pid_ = fork();
  if (pid_ < 0) throw std::runtime_error("fork");
  if (pid_ == 0) {
    dup2(ends[1], STDOUT_FILENO);
    dup2(ends[1], STDERR_FILENO);
    // Signals that this program ignores since its start ('make test &' ignores SIGINT) would stay ignored in the child.
    for (const int number : {SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGPIPE, SIGCHLD}) ::signal(number, SIG_DFL);
    if (prepare) prepare();
    for (const auto& [name, value] : extra) setenv(name.c_str(), value.c_str(), 1);
    execv(argv[0], argv.data());
    _exit(127);
  }
  close(ends[1]);
  out_ = ends[0];
}

Process::~Process() {
  if (pid_ > 0) {
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
  }
  if (out_ >= 0) close(out_);
}

void Process::signal(int number) const {
  if (pid_ > 0) kill(pid_, number);
}

bool Process::running() const {
  siginfo_t info{};
  return waitid(P_PID, static_cast<id_t>(pid_), &info, WEXITED | WNOHANG | WNOWAIT) == 0 && info.si_pid == 0;
}

Finished Process::wait() {
  Finished f;
  char buffer[4096];
  for (ssize_t n = read(out_, buffer, sizeof buffer); n > 0 || (n < 0 && errno == EINTR);
       n = read(out_, buffer, sizeof buffer))
    if (n > 0) f.output.append(buffer, static_cast<std::size_t>(n));
  int status = 0;
  waitpid(pid_, &status, 0);
  pid_ = -1;
  f.code = WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
  return f;
}

}  // namespace ring::test
