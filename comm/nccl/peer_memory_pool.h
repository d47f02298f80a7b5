#pragma once
// Memory of this GPU that the other ranks of its host write messages to. It is allocated in segments, which are freed
// only with the pool, because other ranks have them mapped.

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
  // Called as announce(segment, number), so that other ranks know the segment before they receive an address in it.
  using Announce = std::function<void(const Segment&, std::size_t)>;

  PeerMemoryPool(Device device, Announce announce) : device_(device), announce_(std::move(announce)) {}
  ~PeerMemoryPool();
  PeerMemoryPool(const PeerMemoryPool&) = delete;
  PeerMemoryPool& operator=(const PeerMemoryPool&) = delete;

  // Returns a tensor that must be used and freed like memory of the stream's allocator. Throws OutOfMemory.
  Tensor tensor(const Shape&, DType, const Stream&);
  std::optional<RemoteAddress> find(const std::byte*) const;
  std::size_t bytes() const;  // total bytes of all segments
  void abandon();             // peers may still write to the memory: it must not be freed until reclaim()
  void reclaim();             // call once no peer writes to the memory any more

 private:
  std::byte* allocate(std::size_t bytes, const Stream&);
  void deallocate(std::byte*, std::size_t bytes);
  void add_segment(std::size_t bytes, const Stream&);

  Device device_;
  Announce announce_;
  mutable std::mutex mutex_;  // protects the members below
  std::deque<Segment> segments_;
  std::map<std::byte*, std::size_t> free_;  // free ranges within a segment: address -> bytes
  bool abandoned_ = false;
};

}  // namespace ring::nccl

#endif
