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

// Logical parameters that lie one behind the other everywhere and are treated alike.
struct UpdateRange {
  ShardPiece first;        // where the range begins
  std::int64_t numel = 0;  // with the gaps between pieces
  bool decay = false;
  bool cut = false;     // tensor parallelism: other slices hold other parts; otherwise each slice holds the same
  bool frozen = false;  // where some parts of a parameter are and some are not, there are gradients, of no use
  std::size_t key = 0;
  std::vector<LogicalPiece> pieces{};  // of which it is made
  Tensor of(const FlatBuffer& b) const { return b.flat.narrow(0, b.place(first), numel); }
};
// By what else than that they are told apart: no range holds parameters of two keys.
using RangeKey = std::function<std::size_t(const Param&, const LogicalParam&)>;

struct OwnedShard {
  Slice slice = {};                // of the model that all of this is about
  std::vector<ShardPiece> pieces;  // in layout order
  std::int64_t size = 0;           // elements of this rank's shard
  FlatBuffer values;               // the master copy
  FlatBuffer weights;              // what kernels read: the same bytes, or their copy in another type
  FlatBuffer gradients;            // undefined until somebody provides them; what is frozen has none

  bool copies() const { return weights.flat.raw() != values.flat.raw(); }
  FlatBuffer shard(const Tensor& flat) const { return {flat, false}; }
  // key_of null: all have one. Error: those of two keys do not begin where kernels can start.
  std::vector<UpdateRange> ranges(const RangeKey& key_of = {}) const;
  void initialise(std::uint64_t seed, const ExecContext&) const;  // the values of all pieces, and their copies
  void refresh_weights(const ExecContext&) const;
};

// Where the model is cut into slices: gradients of what every slice holds are summed over the slices, each of which has
// a part of them. All replicas get the same bits.
void sum_replicated(const OwnedShard&, Communicator& slices, const ExecContext&);

// The shard of a rank that owns everything, in the flat buffers of `params`.
OwnedShard own_everything(const Parameters& params);

}  // namespace ring
