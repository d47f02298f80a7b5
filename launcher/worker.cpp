#include "launcher/worker.h"

#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstring>
#include <utility>

#include "core/awake_clock.h"
#include "core/check.h"
#include "core/interrupted.h"
#include "launcher/cpu_binding.h"

namespace ring {
namespace {

struct Pipe {
  Fd read_end, write_end;
};

Pipe make_pipe() {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) fail("pipe: ", std::strerror(errno));
  fcntl(ends[0], F_SETFL, O_NONBLOCK);
  return {Fd(ends[0]), Fd(ends[1])};
}

// Arguments and environment of the child process, created before the fork: between fork and exec only async-signal-safe
// calls are allowed.
struct Image {
  std::vector<std::string> texts;
  std::vector<char*> argv, envp;

  explicit Image(const WorkerCommand& c) {
    texts = c.arguments;
    for (const auto& [name, value] : c.environment) texts.push_back(name + "=" + value);
    for (std::size_t i = 0; i < texts.size(); ++i) (i < c.arguments.size() ? argv : envp).push_back(texts[i].data());
    argv.push_back(nullptr);
    envp.push_back(nullptr);
  }
};

Activity activity_of(const WorkerStatus& page) {
  if (!page.stepping) return Activity::unlimited;
  switch (page.phase.load()) {
    case RunPhase::validate: return Activity::validation;
    case RunPhase::snapshot: return Activity::save;
    default: return Activity::step;
  }
}

void say(const char* message) {
  if (write(STDERR_FILENO, message, std::strlen(message)) < 0) _exit(126);
}

constexpr unsigned kCloseOnExec = 4;  // CLOSE_RANGE_CLOEXEC in linux/close_range.h, since Linux 5.11

struct Descriptors {
  int null, output, page;
  const std::vector<int>& inherited;
};

[[noreturn]] void become(const char* program, const Image& image, const CpuBinding& binding, const Descriptors& fds,
                         bool keep_stdout, pid_t agent) {
  setpgid(0, 0);
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != agent) _exit(127);              // the agent died before prctl()
  syscall(SYS_close_range, 3, ~0U, kCloseOnExec);  // closes files that other threads have opened meanwhile
  dup2(fds.null, STDIN_FILENO);
  if (!keep_stdout) dup2(fds.output, STDOUT_FILENO);
  dup2(fds.output, STDERR_FILENO);
  fcntl(fds.page, F_SETFD, 0);  // stays open in the program
  for (const int kept : fds.inherited) fcntl(kept, F_SETFD, 0);
  // Resets the signals that this program itself ignores, and SIGTERM, with which the agent ends workers. Other signals
  // that were ignored when the agent started remain ignored.
  for (const int s : {SIGPIPE, SIGXFSZ, SIGCHLD, SIGTERM}) signal(s, SIG_DFL);
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, nullptr);
  if (!binding.apply()) say("ringmaster launch: the kernel did not bind this worker to its cores\n");
  execve(program, image.argv.data(), image.envp.data());
  say("ringmaster launch: the worker's program could not be executed\n");
  _exit(127);
}

}  // namespace

std::string describe(const Ending& e) {
  if (e.signal) return str("was killed by signal ", e.signal, " (", strsignal(e.signal), ")");
  return str("exited with code ", e.code);
}

Worker::Worker(int rank, const WorkerCommand& command, std::unique_ptr<SharedStatus> page, std::string prefix,
               int console, const std::string& log_path, const HangRules& rules)
    : rank_(rank), page_(std::move(page)), hang_detector_(rules, AwakeClock::now()) {
  Pipe pipe = make_pipe();
  output_ = std::make_unique<WorkerOutput>(std::move(pipe.read_end), std::move(prefix), console, log_path);
  const Fd null(open("/dev/null", O_RDONLY | O_CLOEXEC));
  WorkerCommand own = command;
  own.environment["RINGMASTER_PAGE"] = std::to_string(page_->fd());
  const Image image(own);
  const CpuBinding binding(own.cores, own.memory_nodes);
  const pid_t agent = getpid();
  pid_ = fork();
  if (pid_ < 0) fail("cannot start the worker of rank ", rank, ": ", std::strerror(errno));
  if (pid_ == 0)
    become(own.program.c_str(), image, binding, {null.get(), pipe.write_end.get(), page_->fd(), own.inherited},
           own.keep_stdout, agent);
  setpgid(pid_, pid_);  // the child also does this: either process may be first
  pidfd_ = Fd(static_cast<int>(syscall(SYS_pidfd_open, pid_, 0)));
}

Worker::~Worker() {
  if (ending_) return;
  signal(SIGKILL);
  uninterrupted([&] { return waitpid(pid_, nullptr, 0); });
}

void Worker::set_rank(int rank, std::string prefix, int console) {
  rank_ = rank;
  output_->set_console(console, std::move(prefix));
}

bool Worker::reap() {
  int status = 0;
  if (ending_ || waitpid(pid_, &status, WNOHANG) != pid_) return false;
  ending_ = WIFSIGNALED(status) ? Ending{0, WTERMSIG(status)} : Ending{WEXITSTATUS(status), 0};
  pidfd_.reset();
  output_->drain();
  kill(-pid_, SIGKILL);  // kills the rest of its process group
  return true;
}

bool Worker::is_hanging() {
  if (ending_) return false;
  const LifeSign sign{num_progress_signs(page()), page().step, activity_of(page()), page().validations, page().saves};
  return hang_detector_.update(sign, AwakeClock::now());
}

RankState Worker::state() const {
  RankState s = state_of(page(), rank_);
  s.pid = pid_;
  s.silent = hang_detector_.silence().count();
  s.stopped = !ending_ && is_stopped(pid_);
  return s;
}

void Worker::signal(int number) {
  if (!ending_) kill(-pid_, number);
}

}  // namespace ring
