#pragma once
// Messages between the GPUs of one host, moved by their copy engines: they take no multiprocessors from computation,
// and a rank whose peer is late waits without running anything.
//
// The receiver says where a message is to go by a note (its host's, see mailbox.h) and by a flag that it raises once
// that place is free; the sender copies it there and raises a flag of the receiver. Only memory of peer_memory() can be
// written so: what is to go elsewhere lands there first and is copied on, which does take multiprocessors (all copies
// within a device do). Flags count the messages of an ordered pair, so both sides have to name the same messages in the
// same order. A stream waits only for flags in its own device's memory.

#ifdef RING_WITH_NCCL

#include <cuda_runtime_api.h>

#include <atomic>
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

class PeerCopies : public std::enable_shared_from_this<PeerCopies> {
 public:
  // Collective. Null on every rank when one of them cannot reach all others so; why is in the log (debug). Error: the
  // ranks did not meet within options.connect_timeout.
  static std::shared_ptr<PeerCopies> make(const NcclGroup&, std::shared_ptr<Store>, const CommOptions&);
  PeerCopies(const PeerCopies&) = delete;
  PeerCopies& operator=(const PeerCopies&) = delete;

  // Queues the messages behind the events and returns the event of their end. What goes to a peer, or comes from one,
  // runs in the order of the calls; a call waits for earlier ones with other peers only where its lanes marked their
  // end. Waits for the hosts of the peers to come to the same call; PeerLost after options.timeout, or once aborted.
  // held: what has to live until the end. Called by one thread, with the device current.
  Event exchange(const std::vector<Transfer>& sends, const std::vector<Transfer>& receives,
                 const std::vector<Event>& after, std::vector<Tensor>& held);
  // Where messages can go without another copy.
  PeerMemoryPool& peer_memory() { return *peer_memory_; }

  // From any thread: what waits for a peer goes on, with data that means nothing.
  void abort();
  // Collective, in bounded time. Frees the memory if all ranks are healthy: a peer may still write to it otherwise.
  void close(bool healthy);

 private:
  struct Lane {  // to or from one peer
    explicit Lane(int device);
    Stream stream;
    std::atomic<std::uint32_t> messages = 0;  // queued so far
  };
  enum Flag : int { filled, ready };
  using Messages = std::vector<std::vector<Tensor>>;  // by peer

  PeerCopies(const NcclGroup&, std::shared_ptr<Store>, const CommOptions&);
  std::vector<std::string> gather(const std::string& what, const std::string& value);
  std::string prepare();                                    // this rank's flags for the others
  void connect(const std::vector<std::string>& cards);      // opens the others' flags and boxes
  std::string attempt(const std::function<void()>&) const;  // what went wrong, or kFine
  std::byte* opened(const IpcHandle&);                      // that memory, as this process sees it
  std::byte* opened(int peer, const RemoteAddress&);
  Messages by_peer(const std::vector<Transfer>&) const;                  // but for empty ones
  Messages expect(const Messages& receives, std::vector<Tensor>& held);  // says where they are to go
  void wait_until_free(const std::vector<Transfer>& receives, const std::vector<Event>& after);
  void send(int peer, const Tensor&);
  std::function<void()> deadline() const;
  std::uint32_t* flag(int owner, Flag, int peer) const;
  void release();
  bool idle() const;
  void unmap();

  int rank_, size_, device_;
  std::string key_;
  std::shared_ptr<Store> store_;
  CommOptions options_;
  std::unique_ptr<Mailbox> mailbox_;
  std::shared_ptr<PeerMemoryPool> peer_memory_;
  std::vector<std::byte*> flags_;                  // by rank, as this process sees them
  std::vector<std::vector<std::byte*>> segments_;  // by rank, those that were opened
  std::vector<void*> mapped_;                      // of other processes
  std::deque<Lane> out_, in_;                      // by rank; in_[rank_] is for messages to itself
  std::optional<Stream> ready_;  // says that places are free, while others wait in in_ for what was to come before
  cudaStream_t releasing_ = nullptr;
  Event copied_;  // of messages that landed elsewhere first: that memory may be theirs again
  std::atomic<bool> aborted_ = false, closed_ = false;
};

}  // namespace ring::nccl

#endif
