#pragma once
// Notices that a rank is gone: each says through the store, from a thread of its own, that it is alive, and watches the
// others. Long computations are no silence; a process that was killed, stopped (SIGSTOP), or cut off is. A process that
// was stopped itself gives the others the whole limit anew, since they may have been stopped with it. A rank that hangs
// in an operation while its process lives is left to the operations' own timeout.

#include <functional>
#include <memory>
#include <string>

#include "job/options.h"
#include "job/store.h"

namespace ring {

class Liveness {
 public:
  // Called once, from the thread, with a text that names the rank and its host (or the store, when that is gone).
  using OnLost = std::function<void(const std::string& reason)>;

  struct Setup {
    int rank = 0;
    std::chrono::milliseconds limit{3'000};        // of a rank's silence that counts as death
    std::chrono::milliseconds store_limit{3'000};  // of the store's silence that counts as its loss
    std::string server;                            // who serves the store: "rank 0", "the launcher"
    bool hosts_store = false;                      // this process does
  };
  Liveness(const Store&, const Setup&, OnLost);  // opens a connection of its own
  ~Liveness();                                   // leaves

  // Says goodbye; while an exception unwinds, that this rank failed. A rank that hosts the store waits up to a second
  // for the others' goodbyes.
  void leave();

  // What OnLost was or will be told, asked for by others that noticed something: waits for it for a second. Empty:
  // everybody is well.
  std::string who_is_lost();
  Liveness(const Liveness&) = delete;
  Liveness& operator=(const Liveness&) = delete;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

// This machine's name, and a text that is the same for processes of one running system only.
std::string host_name();
std::string host_identity();

}  // namespace ring
