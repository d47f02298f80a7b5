#pragma once
// One NCCL communicator with its stream: queues operations, tracks unfinished ones, and can be aborted.

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

// Owns the NCCL communicator and serializes calls from several threads.
struct Handle;

class Channel final : public WorkGuard {
 public:
  // Collective: meets the other ranks through the store. Throws Error if they do not meet within
  // options.connect_timeout.
  // abort_flag, notice_time: see NcclWatchdog.
  Channel(const NcclGroup&, const std::shared_ptr<Store>&, std::shared_ptr<std::uint32_t> abort_flag,
          std::chrono::milliseconds notice_time, const CommOptions&);
  ~Channel() override;  // aborts unless close() was called
  void close();         // collective: waits for queued operations for a bounded time, or not at all after a failure

  // NCCL calls that run() queues as one NCCL group. They must pass their results to check().
  using Calls = std::function<void(ncclComm_t, cudaStream_t)>;
  // The same work by copy engines: queues it after the events and returns the event of its end.
  using Copies = std::function<Event(PeerCopies&, const std::vector<Event>& after)>;
  // Queues the calls after `after`, or `copies` if copy engines are available and no CUDA graph is being recorded.
  // Returns the event of their end.
  Event run(const Operation&, const Event& after, const Calls&, const Copies& copies = {});
  static void check(ncclResult_t, const char* call);

  const Stream& stream() const { return stream_; }
  PeerCopies* copies() const { return copies_.get(); }  // null if the group does not use copy engines

  // Callable from any thread:
  void check() const override;  // throws PeerLost after an abort
  void abort(const std::string& reason);
  bool idle() const;  // true if no queued operation is left
  // Returns an error that NCCL reports, or an operation that exceeds the timeout; nullopt if there is neither.
  std::optional<std::string> find_problem();

 private:
  using Clock = AwakeClock;

  void init_communicator(const NcclGroup&, Store&);  // creates the NCCL communicator
  Event queue(const std::string& text, const Event& after, const Calls&, const Copies&);
  std::optional<std::string> find_timed_out();                              // returns an operation over the timeout
  void wait_for_nccl(Clock::time_point deadline, const std::string& what);  // waits for a non-blocking NCCL call
  bool finalize();                                                          // returns false if an abort is needed

  int rank_, size_;
  CommOptions options_;
  Stream stream_;
  const std::shared_ptr<std::uint32_t> abort_flag_;
  const std::chrono::milliseconds notice_time_;
  std::shared_ptr<Handle> handle_;
  std::unique_ptr<HostLink> link_;  // link of call_check_; null unless options.verify
  CallCheck call_check_;
  std::shared_ptr<PeerCopies> copies_;
  Event called_;  // end of the last NCCL calls; copies run on other streams and wait for it
  std::thread::id issuer_;
  std::uint64_t operation_ = 0;
  mutable std::mutex mutex_;  // protects the members below
  PendingOperations pending_;
  ReplayedOperations replayed_;
  std::optional<std::string> failure_;
};

}  // namespace ring::nccl

#endif
