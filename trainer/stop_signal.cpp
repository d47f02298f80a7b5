#include "trainer/stop_signal.h"

#include <csignal>

namespace ring {
namespace {

volatile std::sig_atomic_t stop_requested = 0;  // a signal handler can reach nothing else

void handle(int signal) {
  stop_requested = 1;
  std::signal(signal, SIG_DFL);
}

}  // namespace

StopSignal::StopSignal() {
  stop_requested = 0;
  std::signal(SIGINT, handle);
  std::signal(SIGTERM, handle);
}

StopSignal::~StopSignal() {
  std::signal(SIGINT, SIG_DFL);
  std::signal(SIGTERM, SIG_DFL);
}

bool StopSignal::requested() const { return stop_requested != 0; }

}  // namespace ring
