#pragma once
// While it lives, blocks all asynchronous signals in this thread. Threads that are started meanwhile inherit the mask,
// so signals go to the main thread. A broken connection gives them an error code instead of SIGPIPE.

#include <pthread.h>
#include <csignal>
#include <initializer_list>

namespace ring {

class BlockSignals {
 public:
  BlockSignals() {
    sigset_t all;
    sigfillset(&all);
    for (int s : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT, SIGTRAP, SIGPROF}) sigdelset(&all, s);
    pthread_sigmask(SIG_SETMASK, &all, &saved_);
  }
  ~BlockSignals() { pthread_sigmask(SIG_SETMASK, &saved_, nullptr); }
  BlockSignals(const BlockSignals&) = delete;
  BlockSignals& operator=(const BlockSignals&) = delete;

 private:
  sigset_t saved_;
};

}  // namespace ring
