#pragma once
// Detects lost ranks: a background thread of each rank sends heartbeats through the store and watches those of the
// others. Heartbeats continue during long computations, but not if the process is killed, stopped (SIGSTOP) or cut off.
// After a process was stopped itself, it gives the others the whole limit again, because they may have been stopped
// with it. A rank that hangs in an operation while its process lives is left to the timeout of operations.

#include <functional>
#include <memory>
#include <string>

#include "job/options.h"
#include "job/store.h"

namespace ring {

class Liveness {
 public:
  // Called once, on the background thread, with a text that names the lost rank and its host (or the store, if that is
  // gone).
  using OnLost = std::function<void(const std::string& reason)>;

  struct Setup {
    int rank = 0;
    std::chrono::milliseconds limit{3'000};        // silence after which a rank counts as dead
    std::chrono::milliseconds store_limit{3'000};  // silence after which the store counts as lost
    std::string server;                            // server of the store: "rank 0", "the launcher"
    bool hosts_store = false;                      // this process serves the store
  };
  Liveness(const Store&, const Setup&, OnLost);  // opens its own connection
  ~Liveness();                                   // calls leave()

  // Says goodbye; if called while an exception unwinds, says that this rank failed. A rank that hosts the store waits
  // up to a second for the goodbyes of the others.
  void leave();

  // Returns the text that OnLost got or will get, for a caller that noticed a failure: waits up to a second for it.
  // Empty if no rank is lost.
  std::string lost_rank_text();
  Liveness(const Liveness&) = delete;
  Liveness& operator=(const Liveness&) = delete;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

// host_name(): this machine's name. host_identity(): a text that only processes of the same booted system share.
std::string host_name();
std::string host_identity();

}  // namespace ring
