#pragma once
// Memory of this GPU that the other ranks of its host write messages to. It comes in segments, which are never given
// back while it lives: others have them mapped.

#ifdef RING_WITH_NCCL

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>

#include "comm/nccl/mailbox.h"
#include "core/tensor.h"

namespace ring::nccl {

class PeerMemoryPool : public std::enable_shared_from_this<PeerMemoryPool> {
 public:
  struct Segment {
    std::byte* data;
    std::size_t bytes;
  };
  // announce(segment, its number): the others learn of it before they read of a place in it.
  using Announce = std::function<void(const Segment&, std::size_t)>;

  PeerMemoryPool(Device device, Announce announce) : device_(device), announce_(std::move(announce)) {}
  ~PeerMemoryPool();
  PeerMemoryPool(const PeerMemoryPool&) = delete;
  PeerMemoryPool& operator=(const PeerMemoryPool&) = delete;

  // As if it came from the stream's allocator: to be used and dropped as memory of that stream. OutOfMemory.
  Tensor tensor(const Shape&, DType, const Stream&);
  std::optional<RemoteAddress> find(const std::byte*) const;
  std::size_t bytes() const;  // of all segments
  void abandon();             // peers may still write: the memory is never freed

 private:
  std::byte* take(std::size_t bytes, const Stream&);
  void give_back(std::byte*, std::size_t bytes);
  void add_segment(std::size_t bytes, const Stream&);

  Device device_;
  Announce announce_;
  mutable std::mutex mutex_;  // of what follows
  std::deque<Segment> segments_;
  std::map<std::byte*, std::size_t> free_;  // runs within a segment, by address
  bool abandoned_ = false;
};

}  // namespace ring::nccl

#endif
