#pragma once
// Messages between the GPUs of one host, moved by their copy engines: they take no multiprocessors from computation,
// and a rank whose peer is late waits without running anything.
//
// Every rank has an inbox with kSlots slots for each peer. The sender copies a piece of a message into a slot and
// raises a flag beside it; the receiver copies the piece to where it belongs and raises a flag of the sender, which may
// use the slot again. Flags count the pieces of an ordered pair, so both sides have to name the same messages in the
// same order. A rank waits only for flags in its own memory.

#ifdef RING_WITH_NCCL

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "comm/communicator.h"
#include "comm/nccl/nccl.h"
#include "core/stream.h"

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
  // end. Called by one thread, with the device current.
  Event exchange(const std::vector<Transfer>& sends, const std::vector<Transfer>& receives,
                 const std::vector<Event>& after);

  // From any thread: what waits for a peer goes on, with data that means nothing.
  void abort();
  // Collective, in bounded time. Frees the memory if all ranks are healthy: a peer may still write to it otherwise.
  void close(bool healthy);

 private:
  struct Lane {  // to or from one peer
    explicit Lane(int device);
    Stream stream;
    std::atomic<std::uint32_t> pieces = 0;  // queued so far
  };
  struct Piece {
    std::byte* at;
    std::size_t bytes;
  };
  enum Flag : int { filled, freed };

  PeerCopies(const NcclGroup&, std::shared_ptr<Store>, const CommOptions&);
  std::vector<std::string> gather(const std::string& what, const std::string& value);
  std::string prepare();                                                    // this rank's card for the others
  void connect(const std::vector<std::string>& cards);                      // opens the others' memory
  std::string attempt(const std::function<void()>&) const;                  // what went wrong, or kFine
  std::vector<std::vector<Piece>> cut(const std::vector<Transfer>&) const;  // by peer
  std::byte* slot(int owner, int from, std::uint32_t piece) const;
  std::uint32_t* flag(int owner, Flag, int peer) const;
  void send(int peer, const Piece&);
  void receive(int peer, const Piece&);
  void release();
  bool idle() const;
  void unmap();

  int rank_, size_, device_;
  std::string key_;
  std::shared_ptr<Store> store_;
  CommOptions options_;
  std::size_t flag_bytes_, slot_bytes_;
  std::vector<std::byte*> memory_;  // by rank, as this process sees it: flags, then slots
  std::vector<bool> mapped_;        // it is another process's
  std::deque<Lane> out_, in_;       // by rank; in_[rank_] is for messages to itself
  std::unique_ptr<Lane> releasing_;
  std::atomic<bool> aborted_ = false;
};

}  // namespace ring::nccl

#endif
