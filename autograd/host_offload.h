#pragma once
// Saved activations in host memory. What a part of the model (a block) saved is copied out while the part after it runs
// forward, and back while the part after it runs backward: the device holds that of two parts at a time, and nothing
// waits as long as the copies of a part take less time than a part does.
//
// What is saved of one storage, by any number of ops and as any views, is copied once. It leaves the device at a fixed
// point, where the compute stream waits for its copy, and everything is ordered by events: memory repeats from step to
// step, a step can be recorded (a CUDA graph), and the host never waits. On a CPU, where nothing overlaps, the same
// copies are made between the stream's allocator and memory outside of it.

#include <map>
#include <memory>
#include <vector>

#include "autograd/saved.h"
#include "core/host_slabs.h"

namespace ring {

// Bytes of the newest forward and its backward.
struct OffloadedBytes {
  std::size_t moved = 0;    // to the host
  std::size_t stayed = 0;   // for which there was no room
  std::size_t fetched = 0;  // back again
  std::size_t late = 0;     // of these: when they were needed, not a part ahead
};

class HostOffload final : public SavedTensorHooks, public ScopeListener {
 public:
  static constexpr std::size_t kLeastBytes = std::size_t{64} << 10;  // smaller storages stay where they are

  // Follows the scopes of `ctx`, on whose stream the model runs, and outlives its tapes. limit: bytes of host memory;
  // what finds no room stays on the device, the same in every step.
  HostOffload(const ExecContext& ctx, std::size_t limit);
  HostOffload(const ExecContext& ctx, std::size_t limit, const Stream& out, const Stream& in);  // which copy
  HostOffload(const HostOffload&) = delete;
  HostOffload& operator=(const HostOffload&) = delete;

  std::shared_ptr<SavedStorage> pack(const Tensor&, const ExecContext&) override;  // null outside of all parts
  void enter(const ScopeId&, ScopePass) override;

  // So much of the host is taken now, and locked before the first forward needs it. Error: OutOfHostMemory.
  void reserve(std::size_t bytes) { slabs_.reserve(bytes); }
  std::size_t host_bytes() const { return slabs_.held(); }
  const OffloadedBytes& bytes() const { return bytes_; }

 private:
  class Moved;  // the bytes of one storage
  class View;   // a saved tensor
  using AllMoved = std::vector<std::shared_ptr<Moved>>;
  struct Part {
    ScopeId id;
    std::vector<std::weak_ptr<Moved>> saved{};  // each once, in the order of the forward
    AllMoved living() const;
  };

  void enter_forward(const ScopeId&);
  void enter_backward(const ScopeId&);
  void begin_forward();
  std::shared_ptr<Moved> move(const std::shared_ptr<Storage>&);
  void send(const Part&);
  void drop(const Part&);
  void fetch(const AllMoved&);

  const Stream compute_, out_, in_;
  HostSlabs slabs_;
  std::size_t living_ = 0;   // storages whose bytes on the host are in use
  std::vector<Part> parts_;  // in the order of the forward, as far as their backward has not run
  std::map<std::weak_ptr<Storage>, std::weak_ptr<Moved>, std::owner_less<>> asked_;  // null: it stays
  OffloadedBytes bytes_;
  ScopeSubscription subscription_;
};

}  // namespace ring
