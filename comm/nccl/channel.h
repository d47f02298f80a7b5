#pragma once
// One NCCL communicator with its stream: queues operations, knows which are unfinished, and can be aborted.

#ifdef RING_WITH_NCCL

#include <chrono>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "comm/call_check.h"
#include "comm/communicator.h"
#include "comm/nccl/group.h"
#include "comm/nccl/library.h"
#include "comm/nccl/peer_copies.h"
#include "comm/pending.h"
#include "comm/replayed.h"
#include "core/awake_clock.h"
#include "core/stream.h"
#include "job/options.h"
#include "job/store.h"

namespace ring::nccl {

// Every call that may be made meanwhile by another thread goes through this.
struct Handle;

class Channel final : public WorkGuard {
 public:
  // Collective: meets the other ranks through the store. Error: not within options.connect_timeout.
  Channel(const NcclGroup&, const std::shared_ptr<Store>&, const CommOptions&);
  ~Channel() override;  // aborts unless closed
  void close();         // collective: lets queued operations end; in bounded time, and at once after a failure

  // Queues the calls, as one NCCL group, behind `after`; returns the event of their end. Calls report with check().
  using Calls = std::function<void(ncclComm_t, cudaStream_t)>;
  // Where there are copy engines to use and nothing is being recorded, `copies` runs instead: it queues its work behind
  // the events and returns that of its end.
  using Copies = std::function<Event(PeerCopies&, const std::vector<Event>& after)>;
  Event run(const Operation&, const Event& after, const Calls&, const Copies& copies = {});
  static void check(ncclResult_t, const char* call);

  const Stream& stream() const { return stream_; }
  PeerCopies* copies() const { return copies_.get(); }  // null: not on this group

  // From any thread.
  void check() const override;  // throws PeerLost once aborted
  void abort(const std::string& reason);
  // What is wrong: an error that NCCL reports, or an operation that takes longer than the timeout.
  std::optional<std::string> inspect();

 private:
  using Clock = AwakeClock;

  void meet(const NcclGroup&, Store&);
  Event queue(const std::string& text, const Event& after, const Calls&, const Copies&);
  std::optional<std::string> stuck();
  void settle(Clock::time_point deadline, const std::string& what);
  bool finalize();

  int rank_, size_;
  CommOptions options_;
  Stream stream_;
  std::shared_ptr<Handle> handle_;
  std::unique_ptr<HostLink> link_;  // where calls are compared
  CallCheck call_check_;
  std::shared_ptr<PeerCopies> copies_;
  Event called_;  // the end of the last calls: copies run on other streams than they
  std::thread::id issuer_;
  std::uint64_t operation_ = 0;
  mutable std::mutex mutex_;  // of what follows
  PendingOperations pending_;
  ReplayedOperations replayed_;
  std::optional<std::string> failure_;
};

}  // namespace ring::nccl

#endif
