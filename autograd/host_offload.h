#pragma once
// Offloads saved activations to host memory. The activations that a part of the model (a block) saved are copied out
// while the next part runs its forward, and back while the next part runs its backward. So the device holds the saved
// activations of two parts at a time, and nothing waits as long as the copies of a part take less time than the part
// itself.
//
// A storage is copied once, however many ops save views of it. It is freed on the device at a fixed point, where the
// compute stream waits for the copy, and everything is ordered by events: memory use repeats from step to step, a step
// can be captured (a CUDA graph), and the host never waits. On a CPU, where nothing overlaps, the same copies are made
// between the stream's allocator and memory outside of it.

#include <map>
#include <memory>
#include <vector>

#include "autograd/saved.h"
#include "core/host_slabs.h"

namespace ring {

// Bytes of the latest forward and its backward.
struct OffloadedBytes {
  std::size_t moved = 0;    // bytes copied to the host
  std::size_t stayed = 0;   // bytes not copied because host memory was full
  std::size_t fetched = 0;  // bytes copied back
  std::size_t late = 0;     // part of `fetched` that was copied back only when backward needed it, not one part ahead
};

class HostOffload final : public SavedTensorHooks, public ScopeListener {
 public:
  static constexpr std::size_t kMinBytes = std::size_t{64} << 10;  // smaller storages stay on the device

  // Learns from the scopes of `ctx` which part of the model runs; the model must run on the stream of `ctx`. Must
  // outlive the tapes that save tensors here. limit_bytes: maximum host memory. The tensors that exceed the limit,
  // which are the same in every step, stay on the device.
  HostOffload(const ExecContext& ctx, std::size_t limit_bytes);
  // Same, with given streams for the copies to and from the host.
  HostOffload(const ExecContext& ctx, std::size_t limit_bytes, const Stream& out, const Stream& in);
  HostOffload(const HostOffload&) = delete;
  HostOffload& operator=(const HostOffload&) = delete;

  std::shared_ptr<SavedStorage> pack(const Tensor&, const ExecContext&) override;  // null outside of model parts
  void enter(const ScopeId&, ScopePass) override;

  // Allocates this much host memory now; it is locked before the first forward needs it. Throws OutOfHostMemory.
  void reserve(std::size_t bytes) { slabs_.reserve(bytes); }
  void set_limit(std::size_t bytes) { slabs_.set_limit(bytes); }  // applies from the next offloaded tensor on
  std::size_t host_bytes() const { return slabs_.held(); }
  const OffloadedBytes& bytes() const { return bytes_; }

 private:
  class OffloadedStorage;  // one offloaded storage
  class View;              // a saved tensor that is a view of an offloaded storage
  using OffloadedStorages = std::vector<std::shared_ptr<OffloadedStorage>>;
  struct Part {
    ScopeId id;
    std::vector<std::weak_ptr<OffloadedStorage>> saved{};  // each storage once, in forward order
    OffloadedStorages live_storages() const;
  };

  void enter_forward(const ScopeId&);
  void enter_backward(const ScopeId&);
  void begin_forward();
  std::shared_ptr<OffloadedStorage> offload(const std::shared_ptr<Storage>&);
  void copy_out(const Part&);
  void free_on_device(const Part&);
  void fetch(const OffloadedStorages&);

  const Stream compute_, out_, in_;
  HostSlabs slabs_;
  std::size_t live_storages_ = 0;  // storages whose host memory is in use
  std::vector<Part> parts_;        // parts in forward order, removed once their backward has run
  // Offloaded storage of each storage that was passed to pack(); null if the storage stays on the device.
  std::map<std::weak_ptr<Storage>, std::weak_ptr<OffloadedStorage>, std::owner_less<>> packed_;
  OffloadedBytes bytes_;
  ScopeSubscription subscription_;
};

}  // namespace ring
