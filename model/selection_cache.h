#pragma once
// What generation keeps of a layer whose blocks are selected by content, so that each new token sees the blocks that
// the whole pass selects: the newest queries, the means of the blocks of keys, and what was selected.

#include <cstdint>
#include <functional>
#include <vector>

#include "autograd/ops.h"
#include "kernels/attention/block_pool.h"
#include "kernels/attention/block_select.h"

namespace ring {

class SelectionCache {
 public:
  // For `batch` sequences of at most `capacity` tokens; queries are of ctx.precision's type.
  SelectionCache(const Pattern&, std::int64_t batch, std::int64_t capacity, std::int64_t heads, std::int64_t kv_heads,
                 std::int64_t head_dim, const ExecContext&);

  // Copies the queries (q [N,Hq,D], heads adjacent) of tokens that come behind the `lengths[b]` of each sequence.
  void append(const Tensor& q, const Sequences&, const std::vector<std::int32_t>& lengths, const ExecContext&);
  // Selects for the block in which tokens[b] lies, where that is another one than before, by a pattern that has the
  // blocks of the first; then the host waits for it. keys [batch,rows,Hk,D]: of all tokens so far, token t in row t.
  // scored: gives the scores of these blocks, in rows as selections have theirs; null: pooled queries and keys do, at
  // attention's scale.
  using Scored = std::function<Tensor(const std::vector<SelectedRows>&)>;
  void select(const Pattern&, const Tensor& keys, float scale, const std::vector<std::int32_t>& tokens,
              const Scored& scored, const ExecContext&);
  // Whether block `k` of keys was selected.
  bool keeps(std::size_t sequence, std::int32_t head, std::int32_t k) const;
  std::int32_t block() const { return blocks_->block(); }

 private:
  struct Sequence {
    std::int32_t selected = -1;  // the block that was selected for
    std::int32_t pooled = 0;     // blocks of keys whose means are known
  };
  void score(const Tensor& keys, std::vector<PooledRows> new_queries, std::vector<PooledRows> new_keys,
             const ExecContext&) const;
  // What is pooled before block `own` of a sequence is selected for; the means of its keys are known then.
  void pool(std::size_t sequence, std::int32_t own, std::int64_t key_rows, std::vector<PooledRows>& queries,
            std::vector<PooledRows>& keys);

  std::shared_ptr<const BlockPattern> blocks_;
  std::int32_t most_;              // blocks of a sequence
  Tensor queries_;                 // [batch, 2 blocks of rows, Hq, D]: token t in row t % rows
  Tensor key_means_;               // f32 [batch * most, Hk, D]
  Tensor query_means_, selected_;  // f32 [batch,Hk,D]: of the block before; i32 [batch,Hk,words]
  std::vector<Sequence> sequences_;
  std::vector<std::int32_t> bits_;  // of `selected_`
};

}  // namespace ring
