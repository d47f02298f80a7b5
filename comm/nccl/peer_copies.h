#pragma once
// Messages between the GPUs of one host, moved by copy engines: they use no SMs, and a rank with a late peer waits
// without running a kernel.
//
// The receiver tells the sender where to write: by a note between the hosts (mailbox.h), and by a flag that it raises
// once the destination is free. The sender copies the message there and raises a flag of the receiver. Peers can write
// only to peer_memory(). A message for other memory lands in peer_memory() first and is then copied to its tensor,
// which uses SMs, as all copies within a device do. Flags count the messages of each (sender, receiver) pair, so both
// sides must pass the same messages in the same order. A stream waits only for flags in its own device's memory.

#ifdef RING_WITH_NCCL

#include <cuda_runtime_api.h>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "comm/communicator.h"
#include "comm/nccl/group.h"
#include "comm/nccl/mailbox.h"
#include "comm/nccl/peer_memory_pool.h"
#include "core/stream.h"
#include "job/options.h"
#include "job/store.h"

namespace ring::nccl {

inline constexpr std::chrono::milliseconds kCloseTime{5'000};  // time for the last operations, and for an abort

class PeerCopies : public std::enable_shared_from_this<PeerCopies> {
 public:
  // Collective. Returns null on every rank if one rank cannot access all others' memory; the reason is logged (debug).
  // Throws Error if the ranks do not meet within options.connect_timeout.
  static std::shared_ptr<PeerCopies> make(const NcclGroup&, std::shared_ptr<Store>, const CommOptions&);
  PeerCopies(const PeerCopies&) = delete;
  PeerCopies& operator=(const PeerCopies&) = delete;

  // Queues the messages after the events. Returns the event of their end. Messages with one peer run in the order of
  // the calls. A call waits for an earlier call with other peers only if it uses the lane (a peer's stream) on which
  // that call recorded its end. Blocks until the hosts of the peers reach the same call. Throws PeerLost after
  // options.timeout, or after abort(). `keep_alive` receives tensors that must live until the end. Called by one
  // thread, with the device current.
  Event exchange(const std::vector<Transfer>& sends, const std::vector<Transfer>& receives,
                 const std::vector<Event>& after, std::vector<Tensor>& keep_alive);
  // Memory that peers can write to directly.
  PeerMemoryPool& peer_memory() { return *peer_memory_; }

  // Releases all waits for peers; received data is garbage then. Callable from any thread.
  void abort();
  // Collective, in bounded time. Frees the memory if all ranks are healthy. Otherwise a peer may still write to it, and
  // the next make() of this process frees it: when ranks meet again, they have ended all earlier work.
  void close(bool healthy);
  bool is_idle() const;  // true if no stream has work

 private:
  struct Lane {  // the stream of messages to one peer, or from one peer
    explicit Lane(int device);
    Stream stream;
    std::atomic<std::uint32_t> messages = 0;  // number of messages queued so far
  };
  enum Flag : int { filled, ready };
  using Messages = std::vector<std::vector<Tensor>>;  // messages by peer

  PeerCopies(const NcclGroup&, std::shared_ptr<Store>, const CommOptions&);
  std::vector<std::string> gather(const std::string& what, const std::string& value);
  std::string prepare();  // creates this rank's flags; returns their handle for the other ranks
  void connect(const std::vector<std::string>& cards);      // opens the other ranks' flags and mailboxes
  std::string attempt(const std::function<void()>&) const;  // returns the error text, or kFine
  std::byte* map_memory(const IpcHandle&);                  // maps the memory into this process
  std::byte* map_memory(int peer, const RemoteAddress&);
  Messages group_by_peer(const std::vector<Transfer>&) const;  // groups messages by peer, without empty ones
  // Tells each sender where to write. Returns the destinations: the receive tensor itself, or, if peers cannot write to
  // it, a staging tensor, which is added to `keep_alive`.
  Messages post_receives(const Messages& receives, std::vector<Tensor>& keep_alive);
  void wait_until_free(const std::vector<Transfer>& receives, const std::vector<Event>& after);
  void send(int peer, const Tensor&);      // queues one message
  std::function<void()> deadline() const;  // throws PeerLost after the timeout or an abort
  std::uint32_t* flag_address(int owner, Flag, int peer) const;
  void raise_all_flags();      // raises all flags repeatedly until close() was called and all streams are idle
  static void free_retired();  // frees the memory that close() could not free
  void unmap_memory();

  int rank_, size_, device_;
  std::string key_;
  std::shared_ptr<Store> store_;
  CommOptions options_;
  std::unique_ptr<Mailbox> mailbox_;
  std::shared_ptr<PeerMemoryPool> peer_memory_;
  std::vector<std::byte*> flags_;                  // each rank's flags, mapped into this process
  std::vector<std::vector<std::byte*>> segments_;  // each rank's segments, mapped into this process
  std::vector<void*> mapped_;                      // addresses where memory of other processes is mapped
  std::deque<Lane> out_, in_;                      // lanes by rank; in_[rank_] is for messages to this rank itself
  // The stream that raises the `ready` flags, so that it does not wait for earlier messages as the lanes in in_ do.
  std::optional<Stream> ready_;
  cudaStream_t releasing_ = nullptr;
  Event copied_;  // end of the copies out of staging memory, which peers may overwrite afterwards
  std::atomic<bool> aborted_ = false, closed_ = false;
};

}  // namespace ring::nccl

#endif
