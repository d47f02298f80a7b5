#include "trainer/stop_signal.h"

#include <csignal>

namespace ring {
namespace {

constexpr int kSignals[] = {SIGINT, SIGTERM, SIGHUP, SIGUSR1};

volatile std::sig_atomic_t stop_requested = 0;  // a signal handler can reach nothing else

void handle(int signal) {
  stop_requested = 1;
  std::signal(signal, SIG_DFL);
}

}  // namespace

StopSignal::StopSignal() {
  stop_requested = 0;
  for (int signal : kSignals) std::signal(signal, handle);
}

StopSignal::~StopSignal() {
  for (int signal : kSignals) std::signal(signal, SIG_DFL);
}

bool StopSignal::requested() const { return stop_requested != 0; }

}  // namespace ring
