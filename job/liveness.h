#pragma once
// Detects lost ranks: a background thread of each rank sends heartbeats through the store and watches the heartbeats of
// the other ranks. Heartbeats continue during long computations, but not if the process is killed, stopped (SIGSTOP) or
// disconnected. After a process itself was stopped, it allows the other ranks the whole limit again, because they may
// have been stopped at the same time. If a rank hangs in an operation while its process is alive, the timeout of
// operations detects it.

#include <functional>
#include <memory>
#include <string>

#include "job/options.h"
#include "job/store.h"

namespace ring {

class Liveness {
 public:
  // Called once, on the background thread, with a text that names the lost rank and its host, or the store if it is
  // gone.
  using OnLost = std::function<void(const std::string& reason)>;

  struct Setup {
    int rank = 0;
    std::chrono::milliseconds limit{3'000};        // silence after which a rank counts as dead
    std::chrono::milliseconds store_limit{3'000};  // silence after which the store counts as lost
    std::string server;                            // server of the store, e.g. "rank 0" or "the launcher"
    bool hosts_store = false;                      // true if this process serves the store
  };
  Liveness(const Store&, const Setup&, OnLost);  // opens its own connection to the store
  ~Liveness();                                   // calls say_goodbye()

  // Says goodbye; if called while an exception unwinds, reports that this rank failed. A rank that hosts the store
  // waits up to a second for the goodbyes of the other ranks.
  void say_goodbye();

  // Returns the text that OnLost got or will get; empty if no rank is lost. Call after noticing a failure: waits up to
  // a second for the text.
  std::string lost_rank_text();
  Liveness(const Liveness&) = delete;
  Liveness& operator=(const Liveness&) = delete;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

// host_name(): name of this machine. host_identity(): a text that is the same only for processes on the same booted
// system.
std::string host_name();
std::string host_identity();

}  // namespace ring
