#include "core/stop_signal.h"

#include <unistd.h>

#include <csignal>

#include "core/log.h"

namespace ring {
namespace {

// Has the value of StopSignal::requested_ for code that gets no StopSignal.
std::atomic<bool> told_to_stop{false};

sigset_t watched() {
  sigset_t set;
  sigemptyset(&set);
  for (int signal : {SIGINT, SIGTERM, SIGHUP, SIGUSR1}) sigaddset(&set, signal);
  return set;
}

// Ends the process by the signal's default action, or by _exit() as process 1 of a container, for which the kernel has
// no default action.
void end_process(int signal) {
  std::signal(signal, SIG_DFL);
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, signal);
  pthread_sigmask(SIG_UNBLOCK, &set, nullptr);
  std::raise(signal);
  constexpr int kSignalExitBase = 128;  // shells add it to the signal's number
  ::_exit(kSignalExitBase + signal);
}

}  // namespace

bool stop_requested() { return told_to_stop; }

bool is_ignored(int signal) {
  struct sigaction action {};
  return sigaction(signal, nullptr, &action) == 0 && action.sa_handler == SIG_IGN;
}

void end_on_signals_as_process_1() {
  if (getpid() != 1) return;
  for (const int signal : {SIGTERM, SIGINT, SIGHUP, SIGQUIT})
    if (!is_ignored(signal)) std::signal(signal, end_process);
}

StopSignal::StopSignal(bool announces) : announces_(announces) {
  told_to_stop = false;
  const sigset_t set = watched();
  pthread_sigmask(SIG_BLOCK, &set, nullptr);
  thread_ = std::thread([this] { wait(); });
}

StopSignal::~StopSignal() {
  closing_ = true;
  pthread_kill(thread_.native_handle(), SIGUSR1);  // ends sigwait()
  thread_.join();
  const sigset_t set = watched();
  pthread_sigmask(SIG_UNBLOCK, &set, nullptr);
}

void StopSignal::on_save_begin() {
  save_began_ = std::chrono::steady_clock::now();
  save_requested_ = false;
}

void StopSignal::request_save() {
  if (std::chrono::steady_clock::now() - save_began_.load() < kSameSignalWithin) return;
  if (save_requested_.exchange(true)) return;
  if (announces_) log::info("saving a checkpoint after this step because of SIGUSR1");
}

void StopSignal::wait() {
  const sigset_t set = watched();
  int signal = 0;
  std::chrono::steady_clock::time_point first;
  while (sigwait(&set, &signal) == 0 && !closing_) {
    if (is_ignored(signal)) continue;  // sigwait() also returns ignored signals
    if (signal == SIGUSR1 && usr1_saves_) {
      request_save();
      continue;
    }
    told_to_stop = true;
    if (requested_.exchange(true)) {
      if (std::chrono::steady_clock::now() - first > kSameSignalWithin) end_process(signal);
      continue;
    }
    first = std::chrono::steady_clock::now();
    if (announces_)
      log::info("stopping ", stepping_ ? "after this step" : "before the first step",
                "; a second signal ends the process at once, without saving");
  }
}

}  // namespace ring
