#pragma once
// Dilated attention over a sequence in chunks (train.sequence_chunk): its long branches, which are those with segments
// longer than a chunk. For each head, a chunk of n tokens has n / rate samples of a branch, that is, rows that the
// branch samples. The chunk's samples attend densely to the samples of the segment so far. Only samples are stored, not
// whole chunks. If every branch has the same number of samples per segment, device memory is independent of the
// sequence length, and ChunkStore holds one set of samples for each segment.

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

// The long branches of one layer, for some of its KV heads.
class LongBranches {
 public:
  LongBranches(ChunkStore& store, std::int64_t layer, std::int64_t first_head)
      : store_(store), layer_(layer), first_head_(first_head) {}
  void clear() { samples_.clear(); }  // call before the first chunk of a sequence

  // Merges the attention over long branches into sum [N,Hq,D] f32 and args.lse. stores: true if the samples of each
  // segment are stored after its last chunk, for the backward.
  void attend(const SplitPattern&, const Attention& args, int chunk, bool stores, const Tensor& sum,
              const ExecContext&);
  // Accumulates gradients: those of the queries in dq [N,Hq,D], and those of the chunk's keys and values in `own`, all
  // f32. Chunks must be visited in reverse order.
  void attend_backward(const SplitPattern&, const AttentionBackward& args, int chunk, const Tensor& dq,
                       const KvPair& own, const ExecContext&);

 private:
  // Samples of the segment that the current chunk is in: [segment / rate, Hk, D].
  struct Samples {
    std::int64_t segment = -1;  // number of the segment in the sequence
    std::int64_t gradients_segment = -1;
    KvPair keys, gradients;  // gradients: f32
  };
  Samples& enter(const SplitPattern&, std::size_t branch, std::int64_t segment, bool stores, const Tensor& like,
                 const ExecContext&);
  ChunkStore::Key key_of(const SplitPattern&, std::size_t branch, std::int64_t segment) const;

  ChunkStore& store_;
  const std::int64_t layer_, first_head_;
  std::vector<Samples> samples_;  // by branch
};

}  // namespace ring
