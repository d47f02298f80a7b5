#include "model/attention/learned/index_cache.h"

#include "core/checked.h"

namespace ring {

void IndexCache::allocate(const Indexer& indexer, const Tensor& x, const ExecContext& ctx) {
  if (newest_.defined()) return;
  newest_ = ctx.empty({batch_, block_, x.dim(1)}, x.dtype(), Lifetime::run);
  projected_ = ctx.empty({batch_ * max_blocks(), indexer.shape().width()}, indexer.type(), Lifetime::run);
}

void IndexCache::store_means(const Indexer& indexer, const Tensor& means, const std::vector<std::int64_t>& rows,
                             const ExecContext& ctx) {
  const Tensor made = indexer.project(means, ctx);
  for (std::size_t i = 0; i < rows.size(); ++i)
    copy(projected_.narrow(0, rows[i], 1), made.narrow(0, static_cast<std::int64_t>(i), 1), ctx.stream);
}

void IndexCache::append(const Indexer& indexer, const Tensor& x, const Sequences& seqs,
                        const std::vector<std::int32_t>& lengths, const ExecContext& ctx) {
  allocate(indexer, x, ctx);
  std::vector<PoolSegment> whole;  // complete blocks, to be averaged: rows of x for empty sequences, else of newest_
  std::vector<std::int64_t> rows;
  const bool begins = lengths[0] == 0;
  for (std::int32_t b = 0; b < batch_; ++b) {
    const std::int32_t first = seqs.offsets[static_cast<std::size_t>(b)], before = lengths[static_cast<std::size_t>(b)];
    const std::int32_t end = before + seqs.offsets[static_cast<std::size_t>(b) + 1] - first;
    const std::int32_t own = end / block_, kept = begins ? own * block_ : before;
    if (end > kept)
      copy(newest_.narrow(0, b, 1).narrow(1, kept % block_, end - kept).view({end - kept, x.dim(1)}),
           x.narrow(0, first + kept - before, end - kept), ctx.stream);
    const std::int32_t count = own - before / block_;
    if (count > 0)
      whole.push_back({.first = begins ? first : b * block_,
                       .count = count * block_,
                       .leading_gap = 0,
                       .out = narrow<std::int32_t>(std::ssize(rows))});
    for (std::int32_t i = own - count; i < own; ++i) rows.push_back(b * max_blocks() + i);
  }
  if (rows.empty()) return;
  const Tensor from = begins ? x : newest_.view({batch_ * block_, x.dim(1)});
  store_means(indexer, block_means(from, std::move(whole), std::ssize(rows), block_, ctx), rows, ctx);
}

Tensor IndexCache::scores(const Indexer& indexer, std::vector<SelectedRows> documents, const ExecContext& ctx) const {
  const Tensor scores = ctx.empty({batch_, indexer.shape().count, max_blocks()});
  for (SelectedRows& d : documents) d.queries = d.keys;
  index_scores_kernel({projected_, scores, indexer.shape(), std::move(documents), indexer.biases().value}, ctx);
  return scores;
}

}  // namespace ring
