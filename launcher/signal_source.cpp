#include "launcher/signal_source.h"

#include <pthread.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "core/check.h"
#include "core/stop_signal.h"

namespace ring {

SignalSource::SignalSource(const std::vector<int>& numbers) {
  sigemptyset(&set_);
  sigaddset(&set_, SIGCHLD);
  for (const int s : numbers)
    if (!is_ignored(s)) sigaddset(&set_, s);
  pthread_sigmask(SIG_BLOCK, &set_, &saved_);
  fd_ = Fd(signalfd(-1, &set_, SFD_NONBLOCK | SFD_CLOEXEC));
  RING_CHECK(fd_, "signalfd: ", std::strerror(errno));
}

SignalSource::~SignalSource() { pthread_sigmask(SIG_SETMASK, &saved_, nullptr); }

int SignalSource::next() {
  signalfd_siginfo info;
  return read(fd_.get(), &info, sizeof info) == sizeof info ? static_cast<int>(info.ssi_signo) : 0;
}

}  // namespace ring
