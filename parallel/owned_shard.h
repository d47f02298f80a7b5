#pragma once
// The parameters that this process stores between steps and updates: all of them, or its pieces of a shard plan.

#include <functional>
#include <vector>

#include "comm/communicator.h"
#include "parallel/shard_plan.h"

namespace ring {

// A flat buffer with the layout of all parameters (whole) or of this rank's shard.
struct FlatBuffer {
  Tensor flat;
  bool whole = true;
  bool on_host = false;          // true: `flat` is host memory that is copied to a device (core/host_tensor.h)
  Tensor exact{};                // in host memory: exact values of encoded weights; if set, `flat` lacks them
  std::int64_t exact_begin = 0;  // shard_offset of the first element of `exact`
  std::int64_t place(const ShardPiece& p) const { return whole ? p.offset : p.shard_offset; }
  // Returns `numel` elements, starting at the first element of a piece.
  Tensor range(const ShardPiece& p, std::int64_t numel) const {
    if (exact.defined() && p.param->encoded) return exact.narrow(0, p.shard_offset - exact_begin, numel);
    return flat.narrow(0, place(p), numel);
  }
  Tensor of(const ShardPiece& p) const { return range(p, p.numel); }
};

// Logical parameters that are adjacent in every buffer and are updated in the same way.
struct UpdateRange {
  ShardPiece first;        // the first piece of the range
  std::int64_t numel = 0;  // elements, including the gaps between pieces
  bool decay = false;
  bool cut = false;     // true if sharded by tensor parallelism; otherwise each slice holds the same parameters
  bool frozen = false;  // if a parameter is only partly frozen, the frozen parts have unused gradients
  std::size_t key = 0;
  std::vector<LogicalPiece> pieces{};  // the pieces of the range
  Tensor of(const FlatBuffer& b) const { return b.range(first, numel); }
};
// Returns a key that splits ranges further: all parameters of a range have the same key.
using RangeKey = std::function<std::size_t(const Param&, const LogicalParam&)>;

struct OwnedShard {
  Slice slice = {};                // the tensor-parallel slice of the model
  std::vector<ShardPiece> pieces;  // sorted by their place in the layout
  std::int64_t size = 0;           // elements of this rank's shard
  FlatBuffer values;               // the master values, which the optimizer updates
  // Weights that kernels read, without encoded ones: the memory of `values`, or a copy in a different type.
  FlatBuffer weights;
  FlatBuffer gradients;  // undefined until DataParallel sets it; frozen parameters have none

  // Returns true if the master values have a buffer of their own; otherwise they are the weights themselves.
  bool separate_master() const { return weights.flat.raw() != values.flat.raw(); }
  FlatBuffer as_shard(const Tensor& flat) const { return {flat, false}; }  // flat: has the layout of this shard
  // Returns the shard as ranges; key_of may be null. Throws Error if a range would begin at an element that is not
  // aligned for kernels (kParamAlign).
  std::vector<UpdateRange> ranges(const RangeKey& key_of = {}) const;
  void initialise(std::uint64_t seed, const ExecContext&) const;  // fills the values of all pieces, and their copies
  void refresh_weights(const ExecContext&) const;                 // not of encoded weights (parallel/encoded_weights.h)
};

// Sums the gradients of replicated parameters over the tensor-parallel slices, each of which has a part of the sum.
// Collective over `slices`. All replicas get bit-identical results.
void sum_replicated(const OwnedShard&, Communicator& slices, const ExecContext&);

// Returns the shard of a rank that owns everything, in the flat buffers of `params`.
OwnedShard own_everything(const Parameters& params);

}  // namespace ring
