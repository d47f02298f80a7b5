#pragma once
// Dilated attention over a sequence in chunks (train.sequence_chunk): branches whose segments are longer than a chunk.
// A chunk of n tokens has n / rate samples of such a branch for each head, so the samples of the segment so far are few
// keys, on which the chunk's own samples attend densely. Only these samples are stored, not whole chunks: if every
// branch has as many samples in a segment, memory does not depend on the length of the sequence, except for one set of
// samples for each segment in ChunkStore.

#include <optional>
#include <vector>

#include "parallel/context/chunk_store.h"
#include "parallel/context/rows.h"

namespace ring {

struct LongBranch {
  std::int64_t segment, rate;  // as in Branch; at most the sequence
  // Pairs within one segment of this length are pairs of shorter branches, which are counted only there
  // (Pattern::dedup); 0 if all pairs are counted.
  std::int64_t shorter = 0;
};

// A dilated pattern, split into branches that stay within chunks and long branches.
struct SplitPattern {
  std::int64_t chunk;  // tokens of each chunk
  Pattern within_chunks;
  std::vector<LongBranch> branches;
};
// Returns nullopt if no branch is long, or if it cannot be split: chunks must have the same length, a single document
// must fill the sequence, rates must divide chunks and segments, and segments must be multiples of chunks or divide
// them.
std::optional<SplitPattern> split_pattern(const Pattern&, const ContextShards&);

// The long branches of one layer.
class LongBranches {
 public:
  LongBranches(ChunkStore& store, std::int64_t layer) : store_(store), layer_(layer) {}
  void clear() { samples_.clear(); }  // call before the first chunk of a sequence

  // Merges the attention over long branches into sum [N,Hq,D] f32 and args.lse. stores: the samples of segments that
  // the sequence has passed are stored for a backward.
  void attend(const SplitPattern&, const Attention& args, int chunk, bool stores, const Tensor& sum,
              const ExecContext&);
  // Adds gradients: to dq [N,Hq,D] f32, and to `own` those of the chunk's keys, f32. Chunks come in reverse order.
  void attend_backward(const SplitPattern&, const AttentionBackward& args, int chunk, const Tensor& dq,
                       const KvPair& own, const ExecContext&);

 private:
  // Samples of the segment that the current chunk is in: [segment / rate, Hk, D].
  struct Samples {
    std::int64_t segment = -1;  // number of the segment in the sequence
    std::int64_t gradients_segment = -1;
    KvPair keys, gradients;  // gradients: f32
  };
  Samples& enter(const SplitPattern&, std::size_t branch, int chunk, bool stores, const Tensor& like,
                 const ExecContext&);
  ChunkStore::Key key_of(const SplitPattern&, std::size_t branch, std::int64_t segment) const;

  ChunkStore& store_;
  const std::int64_t layer_;
  std::vector<Samples> samples_;  // by branch
};

}  // namespace ring
