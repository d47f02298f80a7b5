#pragma once
// The cache of a layer with content-selected blocks, for generation. Each new token sees the same blocks as in a
// forward over the whole sequence. Holds the newest queries, the means of key blocks, and the current selection.

#include <cstdint>
#include <functional>
#include <vector>

#include "autograd/ops.h"
#include "kernels/attention/pools/block_pool.h"
#include "kernels/attention/selected/block_select.h"

namespace ring {

class SelectionCache {
 public:
  // Creates a cache for `batch` sequences of at most `capacity` tokens. Queries are stored in ctx.precision's type.
  SelectionCache(const Pattern&, std::int64_t batch, std::int64_t capacity, std::int64_t heads, std::int64_t kv_heads,
                 std::int64_t head_dim, const ExecContext&);

  // Appends the queries (q [N,Hq,D], heads adjacent) of new tokens after the `lengths[b]` tokens of each sequence.
  void append(const Tensor& q, const Sequences&, const std::vector<std::int32_t>& lengths, const ExecContext&);
  // Selects key blocks for the query block that contains token tokens[b] of each sequence b. Does nothing for a
  // sequence whose current selection is for that block; otherwise the host waits for the result.
  //   pattern   must have the BlockPattern that the constructor got
  //   keys      [batch,rows,Hk,D]: all tokens so far, token t in row t
  //   scored    computes the scores of the given query blocks, as block_select_kernel takes them; if null, scores are
  //             query means times key means, multiplied by attention's scale
  using Scored = std::function<Tensor(const std::vector<SelectedRows>&)>;
  void select(const Pattern&, const Tensor& keys, float scale, const std::vector<std::int32_t>& tokens,
              const Scored& scored, const ExecContext&);
  // Returns true if key block `k` is selected.
  bool is_selected(std::size_t sequence, std::int32_t head, std::int32_t k) const;
  std::int32_t block() const { return blocks_->block(); }

 private:
  struct Sequence {
    std::int32_t selected = -1;  // number of the query block that the current selection is for
    std::int32_t pooled = 0;     // number of key blocks whose means are computed
  };
  void score(const Tensor& keys, std::vector<PoolSegment> new_queries, std::vector<PoolSegment> new_keys,
             const ExecContext&) const;
  // Appends to `queries` and `keys` the row ranges of the sequence whose means are needed before query block `own` can
  // select key blocks. Marks these key means as computed.
  void pool(std::size_t sequence, std::int32_t own, std::int64_t key_rows, std::vector<PoolSegment>& queries,
            std::vector<PoolSegment>& keys);

  std::shared_ptr<const BlockPattern> blocks_;
  std::int32_t most_;  // maximum number of blocks in a sequence
  Tensor queries_;     // [batch,rows,Hq,D]: token t in row t % rows; rows = 2 blocks
  Tensor key_means_;   // f32 [batch * most_,Hk,D]: mean of block i in row i of its sequence
  // query_means_: query means of the previous block, f32 [batch,Hk,D]. selected_: lists of kept blocks, i32
  // [batch,Hk,capacity].
  Tensor query_means_, selected_;
  std::vector<Sequence> sequences_;
  std::vector<std::int32_t> kept_;  // host copy of selected_
};

}  // namespace ring
