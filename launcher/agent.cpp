#include "launcher/agent.h"

#include <poll.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <memory>
#include <optional>

#include "comm/communicator.h"
#include "comm/environment.h"
#include "comm/store.h"
#include "core/cpu/thread_pool.h"
#include "core/exit_code.h"
#include "core/log.h"
#include "core/stop_signal.h"
#include "launcher/worker.h"

namespace ring {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

// After a failure: for a peer's own death to show, where a worker only lost it; for the others to end with the same
// error; and for those that lost a peer to end by themselves.
constexpr milliseconds kBlameTime{300};
constexpr milliseconds kSweep{200};           // between looks at the workers where the kernel has no pidfd
constexpr std::chrono::seconds kMostHeld{1};  // for lines that look like a last message of a worker that goes on

std::string listed(const std::vector<int>& ranks) {  // "0, 2 and 3"
  std::string text;
  for (std::size_t i = 0; i < ranks.size(); ++i)
    text += str(i == 0 ? "" : i + 1 == ranks.size() ? " and " : ", ", ranks[i]);
  return text;
}

// Signals arrive at a descriptor while this lives.
class SignalSource {
 public:
  SignalSource() {
    sigemptyset(&set_);
    for (const int s : {SIGINT, SIGTERM, SIGHUP, SIGUSR1, SIGUSR2, SIGCHLD}) sigaddset(&set_, s);
    pthread_sigmask(SIG_BLOCK, &set_, &saved_);
    fd_ = Fd(signalfd(-1, &set_, SFD_NONBLOCK | SFD_CLOEXEC));
    RING_CHECK(fd_, "signalfd: ", std::strerror(errno));
  }
  ~SignalSource() { pthread_sigmask(SIG_SETMASK, &saved_, nullptr); }
  SignalSource(const SignalSource&) = delete;
  SignalSource& operator=(const SignalSource&) = delete;
  int fd() const { return fd_.get(); }
  int next() {  // 0: none
    signalfd_siginfo info;
    return read(fd_.get(), &info, sizeof info) == sizeof info ? static_cast<int>(info.ssi_signo) : 0;
  }

 private:
  sigset_t set_, saved_;
  Fd fd_;
};

class Agent {
 public:
  explicit Agent(const LaunchOptions& options);
  int run();

 private:
  enum class Phase { running, stopping, ending };  // stopping: told to by a signal; ending: after a failure

  void start_worker(int rank);
  WorkerCommand command_of(int rank) const;
  void wait_for_events();
  void handle_signal(int number);
  void reap();
  void judge();
  void report(Worker& first);
  std::vector<int> ended_alike(const Worker& first) const;
  void settle(Worker& worker) const;
  bool said(const Worker& ended) const;
  void end(milliseconds patience);
  void enforce_deadline();
  bool any_alive() const;
  Worker* first_failure() const;
  int exit_code() const;
  double seconds() const { return std::chrono::duration<double>(Clock::now() - begin_).count(); }

  const LaunchOptions& options_;
  std::string cookie_;
  StoreServer store_;
  SignalSource signals_;
  Environment environment_;
  int threads_ = 1;
  Clock::time_point begin_ = Clock::now();
  std::vector<std::unique_ptr<Worker>> workers_;
  Phase phase_ = Phase::running;
  Clock::time_point told_;                      // to stop
  std::optional<Clock::time_point> deadline_;   // of the phase: then SIGKILL
  std::optional<Clock::time_point> terminate_;  // when ending: then SIGTERM
  std::optional<Clock::time_point> blame_;      // no failure so far that others cannot share: judge by then
  Worker* failed_ = nullptr;
  std::string error_;  // of the one that failed: the others need not repeat it
};

Agent::Agent(const LaunchOptions& options)
    : options_(options),
      cookie_(random_cookie()),
      store_({"127.0.0.1", 0}, cookie_),
      environment_(current_environment()) {
  threads_ =
      options.threads_per_worker > 0 ? options.threads_per_worker : std::max(1, default_threads() / options.processes);
  prctl(PR_SET_CHILD_SUBREAPER, 1);  // grandchildren come back to us and can be reaped
}

WorkerCommand Agent::command_of(int rank) const {
  WorkerCommand c;
  c.program = options_.program;
  c.arguments = options_.command;
  c.arguments.insert(c.arguments.begin(), "ringmaster");
  c.environment = environment_;
  c.keep_stdout = rank == 0;
  const std::string world = std::to_string(options_.processes);
  const Environment own = {{"RINGMASTER_RANK", std::to_string(rank)},          {"RINGMASTER_WORLD", world},
                           {"RINGMASTER_LOCAL_RANK", std::to_string(rank)},    {"RINGMASTER_LOCAL_WORLD", world},
                           {"RINGMASTER_STORE", to_string(store_.endpoint())}, {"RINGMASTER_COOKIE", cookie_},
                           {"RINGMASTER_THREADS", std::to_string(threads_)}};
  for (const auto& [name, value] : own) c.environment[name] = value;
  if (options_.comm_timeout_seconds > 0)
    c.environment["RINGMASTER_COMM_TIMEOUT"] = std::to_string(options_.comm_timeout_seconds);
  return c;
}

void Agent::start_worker(int rank) {
  const std::string name = "rank" + std::to_string(rank) + ".log";
  const std::string log = options_.log_dir.empty() ? "" : (std::filesystem::path(options_.log_dir) / name).string();
  const bool silent = rank > 0 && !log.empty();
  const std::string prefix = rank == 0 ? "" : "[rank " + std::to_string(rank) + "] ";
  workers_.push_back(std::make_unique<Worker>(rank, command_of(rank), prefix, silent ? -1 : STDERR_FILENO, log));
}

bool Agent::any_alive() const {
  return std::any_of(workers_.begin(), workers_.end(), [](const auto& w) { return w->alive(); });
}

int Agent::run() {
  for (int rank = 0; rank < options_.processes; ++rank) start_worker(rank);
  while (any_alive()) {
    wait_for_events();
    while (const int number = signals_.next()) handle_signal(number);
    reap();
    judge();
    for (auto& w : workers_) settle(*w);
    enforce_deadline();
  }
  for (auto& w : workers_) {
    w->output().finish();
    settle(*w);
  }
  while (waitpid(-1, nullptr, WNOHANG) > 0) continue;  // grandchildren
  return exit_code();
}

void Agent::wait_for_events() {
  std::vector<pollfd> fds = {{signals_.fd(), POLLIN, 0}};
  for (const auto& w : workers_) {
    fds.push_back({w->pidfd(), POLLIN, 0});  // poll passes over -1
    fds.push_back({w->output().fd(), POLLIN, 0});
  }
  auto until = Clock::now() + kSweep;
  if (deadline_) until = std::min(until, *deadline_);
  if (blame_) until = std::min(until, *blame_);
  if (terminate_) until = std::min(until, *terminate_);
  const auto left = std::chrono::ceil<milliseconds>(until - Clock::now()).count();
  poll(fds.data(), fds.size(), static_cast<int>(std::max<std::int64_t>(left, 0)));
  for (auto& w : workers_) w->output().drain();
}

void Agent::handle_signal(int number) {
  if (number == SIGCHLD) return;
  if (number == SIGUSR1 || number == SIGUSR2) {
    for (auto& w : workers_) w->signal(number);
    return;
  }
  if (phase_ == Phase::ending) return;
  if (phase_ == Phase::stopping) {
    if (Clock::now() - told_ < kOneSignal) return;
    log::warn("launch: second signal, ending the workers now");
    return end(milliseconds(0));
  }
  log::info("launch: ", strsignal(number), ", waiting up to ",
            static_cast<double>(options_.stop_timeout.count()) / 1000,
            " s for the workers to end; training saves a checkpoint before");
  phase_ = Phase::stopping;
  told_ = Clock::now();
  deadline_ = Clock::now() + options_.stop_timeout;
  for (auto& w : workers_) w->signal(number);
}

void Agent::reap() {
  for (auto& w : workers_)
    if (w->reap()) w->output().finish();
}

// Among those that failed, one that did not merely lose a peer, and was killed rather than exited, comes first.
Worker* Agent::first_failure() const {
  Worker* first = nullptr;
  const auto weight = [](const Worker& w) {
    return w.ending()->signal ? 2 : w.ending()->code == kExitPeerLost ? 0 : 1;
  };
  for (const auto& w : workers_)
    if (!w->alive() && !w->ending()->ok() && (!first || weight(*w) > weight(*first))) first = w.get();
  return first;
}

void Agent::judge() {
  if (phase_ == Phase::ending || failed_) return;
  Worker* first = first_failure();
  if (!first) return;
  // Told to stop, any exit is fine: the exit code says which. Only a crash would leave the others waiting.
  const Ending& ending = *first->ending();
  if (phase_ == Phase::running &&
      ending.code == kExitInterrupted) {  // somebody signalled a worker; all of them stop together
    phase_ = Phase::stopping;
    deadline_ = Clock::now() + options_.stop_timeout;
  }
  if (phase_ == Phase::stopping &&
      (!ending.signal || ending.signal == SIGINT || ending.signal == SIGTERM || ending.signal == SIGHUP))
    return;
  if ((ending.code == kExitPeerLost || !first->output().error().empty()) && any_alive()) {
    if (!blame_) blame_ = Clock::now() + kBlameTime;
    if (Clock::now() < *blame_) return;
  }
  failed_ = first;
  error_ = first->output().error();
  report(*first);
  end(kBlameTime);
}

// Those that ended with the same message.
std::vector<int> Agent::ended_alike(const Worker& first) const {
  std::vector<int> ranks;
  for (const auto& w : workers_)
    if (!w->alive() && w->ending()->exit_code() == first.ending()->exit_code() && w->output().error() == error_)
      ranks.push_back(w->rank());
  return ranks;
}

void Agent::report(Worker& first) {
  WorkerOutput& output = first.output();
  output.drop();  // the last lines below have it
  const std::vector<int> alike = error_.empty() ? std::vector<int>{} : ended_alike(first);
  const std::string after = str(" after ", std::round(10 * seconds()) / 10, " s");
  if (alike.size() > 1 && alike.size() == workers_.size())
    log::error("launch: all ", workers_.size(), " workers ended with this error and exit code ",
               first.ending()->exit_code(), after);
  else if (alike.size() > 1)
    log::error("launch: ranks ", listed(alike), " ended with one error and exit code ", first.ending()->exit_code(),
               after, "; ending the other workers");
  else if (first.ending()->code == kExitPeerLost)
    log::error("launch: rank ", first.rank(), " (pid ", first.pid(), ") lost another worker", after,
               ", which its message names; ending the other workers");
  else
    log::error("launch: rank ", first.rank(), " (pid ", first.pid(), ") ", describe(*first.ending()), after,
               workers_.size() > 1 ? "; ending the other workers" : "");
  if (!output.log_path().empty()) log::error("launch: its log is ", output.log_path());
  if (first.rank() == 0 && !error_.empty()) return;  // it was on the console just now
  log::error("launch: last lines of rank ", first.rank(), output.tail().empty() ? ": none" : ":");
  for (const std::string& line : output.tail()) log::error("  | ", line);
}

// Its message is that of the worker that failed, or that it lost this one.
bool Agent::said(const Worker& ended) const {
  if (!failed_) return false;
  const bool lost = ended.ending()->code == kExitPeerLost && failed_->ending()->code != kExitPeerLost;
  return lost || ended.output().error() == error_;
}

// Writes the message that was held back, unless that has been said.
void Agent::settle(Worker& worker) const {
  WorkerOutput& output = worker.output();
  if (!output.holds()) return;
  if (!worker.alive() && said(worker)) return output.drop();
  const bool judged = !worker.alive() && phase_ != Phase::running;
  if (judged || !any_alive() || Clock::now() - output.held_since() > kMostHeld) output.release();
}

// Workers have their own time to end before they are told to, which they would announce.
void Agent::end(milliseconds patience) {
  phase_ = Phase::ending;
  blame_.reset();
  terminate_ = Clock::now() + std::min(patience, options_.grace);
  deadline_ = Clock::now() + options_.grace;
}

void Agent::enforce_deadline() {
  if (terminate_ && Clock::now() >= *terminate_) {
    terminate_.reset();
    for (auto& w : workers_) w->signal(SIGTERM);
  }
  if (!deadline_ || Clock::now() < *deadline_) return;
  for (auto& w : workers_)
    if (w->alive()) {
      if (phase_ == Phase::stopping) log::warn("launch: rank ", w->rank(), " did not stop in time, killing it");
      w->signal(SIGKILL);
    }
  deadline_.reset();
}

int Agent::exit_code() const {
  const Worker* first = failed_ ? failed_ : first_failure();
  return first ? first->ending()->exit_code() : 0;
}

void check_options(const LaunchOptions& o) {
  if (o.processes < 1) fail("launch: --nproc-per-node is ", o.processes, "; at least 1");
  if (o.threads_per_worker < 0) fail("launch: --threads-per-worker is ", o.threads_per_worker, "; at least 1");
  if (o.command.empty()) fail("launch: nothing to start; write it after --, such as: -- train config.yaml");
  if (o.log_dir.empty()) return;
  std::error_code error;
  std::filesystem::create_directories(o.log_dir, error);
  if (error) fail("launch: cannot create --log-dir '", o.log_dir, "': ", error.message());
}

}  // namespace

int run_agent(const LaunchOptions& options) {
  check_options(options);
  return Agent(options).run();
}

}  // namespace ring
