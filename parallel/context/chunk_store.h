#pragma once
// Keys and values of earlier chunks of a sequence (train.sequence_chunk), and the gradients that later chunks add to
// them, as messages (rows.h). They stay on the device, or lie in host memory: then they are copied out while the device
// computes, and back while the device computes with the keys before them.

#include <compare>
#include <cstdint>
#include <map>
#include <optional>
#include <vector>

#include "core/host_slabs.h"
#include "kernels/kernel.h"

namespace ring {

class ChunkStore {
 public:
  struct Key {
    std::int64_t layer = 0, head = 0;  // head: the first of the KV heads in the message; below 0: a recurrence's state
    int chunk = 0;
    std::size_t message = 0;  // index in ChunkPlan::messages
    auto operator<=>(const Key&) const = default;
  };

  // Elements [first, first + count) of a message.
  struct Elements {
    std::int64_t first = 0, count = 0;
    bool operator==(const Elements&) const = default;
  };
  using Parts = std::optional<std::vector<Elements>>;  // ascending parts of a message; unset: the whole message

  // host_limit: maximum bytes of host memory; 0 means that everything stays on the device.
  ChunkStore(const ExecContext& ctx, std::size_t host_limit);
  ~ChunkStore();
  ChunkStore(const ChunkStore&) = delete;
  ChunkStore& operator=(const ChunkStore&) = delete;

  void clear();  // drops everything
  // Frees the device copies of tensors that were copied to the host. Call it at the end of each chunk, so that none of
  // the memory planned for a step (core/step_arena.h) is in use between chunks. Tensors that the store holds on the
  // device are not part of that plan.
  void free_stored();
  void drop(const Key&);

  // Stores keys and values. Throws OutOfHostMemory if they do not fit.
  void put(const Key&, const Tensor& message);
  // Start to copy to the device what keys() and gradients() will return, or add_gradients() will add to, for the same
  // parts.
  void prefetch_keys(const Key& key, const Parts& parts = {}) { prefetch(keys_, key, parts); }
  void prefetch_gradients(const Key& key, const Parts& parts = {}) { prefetch(gradients_, key, parts); }
  // Returns keys and values. From host memory only the parts are copied, and the other elements are 0. Throws Error if
  // nothing was put().
  Tensor keys(const Key&, const Parts& parts = {});
  // Returns the sum of the gradients, f32; undefined if none were added.
  Tensor gradients(const Key&);
  // Adds gradients, f32, which must be 0 outside of the parts.
  void add_gradients(const Key&, const Tensor& message, const Parts& parts = {});

  bool on_host() const { return on_host_; }  // false if everything stays on the device
  std::size_t host_bytes() const { return slabs_.held(); }
  // Returns the value of host_bytes() after the gradients of all stored keys and values have been added.
  std::size_t expected_host_bytes() const;

 private:
  struct HostPiece {
    std::byte* data = nullptr;
    std::size_t bytes = 0;
  };
  struct Entry {
    Tensor form;     // shape and type, without storage
    Tensor here;     // the tensor on the device; undefined if it is only in host memory
    Event arrived;   // end of the copy to `here`
    HostPiece host;  // no memory if the tensor stays on the device
    Event stored;    // end of the copy to `host`
  };
  using Entries = std::map<Key, Entry>;
  struct Leaving {  // a tensor that is being copied to the host
    Tensor tensor;
    Event stored;
  };

  void prefetch(Entries&, const Key&, const Parts&);
  void fetch(Entry&, const Parts&);
  Tensor use(Entry&, const Parts&);
  void store(Entry&, const Tensor&, const Parts&);
  void forget(Entries&, const Key&);
  HostPiece take_host(std::size_t bytes);

  const ExecContext ctx_;
  const bool on_host_;
  const Stream out_, in_;
  HostSlabs slabs_;
  std::multimap<std::size_t, std::byte*> free_;  // pieces of `slabs_` that are free, by size
  Entries keys_, gradients_;
  std::vector<Leaving> leaving_;
};

}  // namespace ring
