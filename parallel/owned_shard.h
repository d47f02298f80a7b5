#pragma once
// What this process keeps of the parameters between steps, and updates: all of them, or its pieces of a shard plan.

#include <functional>
#include <vector>

#include "comm/communicator.h"
#include "parallel/shard_plan.h"

namespace ring {

// A flat buffer, laid out like all parameters or like this rank's shard.
struct FlatBuffer {
  Tensor flat;
  bool whole = true;
  std::int64_t place(const ShardPiece& p) const { return whole ? p.offset : p.shard_offset; }
  Tensor of(const ShardPiece& p) const { return flat.narrow(0, place(p), p.numel); }
};

// Pieces that lie one behind the other everywhere and are updated alike.
struct UpdateRange {
  ShardPiece first;        // where the range begins
  std::int64_t numel = 0;  // with the gaps between pieces
  bool decay = false;
  bool cut = false;  // tensor parallelism: other slices hold other parts; otherwise each slice holds the same
  std::size_t group = 0;
  Tensor of(const FlatBuffer& b) const { return b.flat.narrow(0, b.place(first), numel); }
  // What of it lies in elements [begin, begin + n) of the shard; numel = 0: nothing.
  UpdateRange within(std::int64_t begin, std::int64_t n) const;
};

struct OwnedShard {
  Slice slice = {};                // of the model that all of this is about
  std::vector<ShardPiece> pieces;  // in layout order
  std::int64_t size = 0;           // elements of this rank's shard, and so of moments
  FlatBuffer values;               // the master copy
  FlatBuffer weights;              // what kernels read: the same bytes, or their copy in another type
  FlatBuffer gradients;            // undefined until somebody provides them

  bool copies() const { return weights.flat.raw() != values.flat.raw(); }
  FlatBuffer shard(const Tensor& flat) const { return {flat, false}; }  // moments
  // group_of: no range holds parameters of two groups; null: all are of one.
  std::vector<UpdateRange> ranges(const std::function<std::size_t(const Param&)>& group_of = {}) const;
  void initialise(std::uint64_t seed, const ExecContext&) const;  // the values of all pieces, and their copies
  void refresh_weights(const ExecContext&) const;
};

// Where the model is cut into slices: gradients of what every slice holds are summed over the slices, each of which has
// a part of them. All replicas get the same bits.
void sum_replicated(const OwnedShard&, Communicator& slices, const ExecContext&);

// The shard of a rank that owns everything, in the flat buffers of `params`.
OwnedShard own_everything(const Parameters& params);

}  // namespace ring
