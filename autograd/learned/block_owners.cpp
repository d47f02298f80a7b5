#include "autograd/learned/block_owners.h"

#include <algorithm>

#include "autograd/selected/block_means.h"
#include "kernels/row_copy.h"

namespace ring {
namespace {

// Return, for a row of the micro-batch: its offset from the start of block 0, which may lie before the document; and
// the first block whose first row in the document is at or after it.
std::int32_t offset_of(const PoolSegment& document, std::int32_t row) {
  return row - document.first + document.leading_gap;
}
std::int32_t first_block_from(const PoolSegment& document, std::int32_t row, std::int32_t size) {
  return row == document.first ? 0 : (offset_of(document, row) + size - 1) / size;
}

// Returns the rows of blocks that are split between ranks.
std::vector<std::int32_t> cut_blocks(const ContextShards& shards, const Pattern& pattern) {
  const std::int32_t size = pattern.blocks->block();
  std::vector<std::int32_t> cut;
  const std::vector<PoolSegment> documents = block_rows(pattern, shards.documents);
  for (const std::vector<LocalRows>& held : shards.rows_by_rank)
    for (const LocalRows& h : held)
      for (const PoolSegment& d : documents) {
        const std::int32_t end = h.global + h.count;
        if (end > d.first && end < d.first + d.count && offset_of(d, end) % size != 0)
          cut.push_back(d.out + offset_of(d, end) / size);
      }
  std::ranges::sort(cut);
  cut.erase(std::ranges::unique(cut).begin(), cut.end());
  return cut;
}

bool owned(const std::vector<PoolSegment>& runs, std::int32_t row, std::int32_t size) {
  return std::ranges::any_of(
      runs, [&](const PoolSegment& r) { return row >= r.out + r.leading_gap / size && row < r.out + r.blocks(size); });
}

}  // namespace

std::vector<PoolSegment> owned_blocks(const ContextShards& shards, const Pattern& pattern) {
  const std::int32_t size = pattern.blocks->block();
  std::vector<PoolSegment> runs;
  for (const PoolSegment& d : block_rows(pattern, shards.documents))
    for (const LocalRows& h : shards.rows_by_rank[static_cast<std::size_t>(shards.rank)]) {
      const std::int32_t begin = std::max(d.first, h.global), end = std::min(d.first + d.count, h.global + h.count);
      if (begin >= end) continue;
      const std::int32_t first = first_block_from(d, begin, size), last = first_block_from(d, end, size);
      const std::int32_t leading_gap = first == 0 ? d.leading_gap : first * size;
      if (first < last)
        runs.push_back({.first = begin,
                        .count = std::min(d.leading_gap + d.count, last * size) - leading_gap,
                        .leading_gap = leading_gap,
                        .out = d.out});
    }
  return runs;
}

void reduce_to_owners(const Tensor& sums, const ContextShards& shards, const Pattern& pattern,
                      ContextExchange& exchange, const ExecContext& ctx) {
  const std::vector<std::int32_t> cut = cut_blocks(shards, pattern);
  if (cut.empty()) return;
  const Tensor travelling = ctx.empty({std::ssize(cut), sums.dim(1), sums.dim(2)});
  for (std::size_t i = 0; i < cut.size(); ++i)
    copy_rows_kernel({travelling, sums, {.to = static_cast<std::int64_t>(i), .first = cut[i], .count = 1}}, ctx);
  exchange.sum(travelling, ctx);
  const Tensor nothing = ctx.zeros({1, sums.dim(1), sums.dim(2)});
  const std::vector<PoolSegment> own = owned_blocks(shards, pattern);
  for (std::size_t i = 0; i < cut.size(); ++i) {
    const bool ours = owned(own, cut[i], pattern.blocks->block());
    copy_rows_kernel({sums,
                      ours ? travelling : nothing,
                      {.to = cut[i], .first = ours ? static_cast<std::int64_t>(i) : 0, .count = 1}},
                     ctx);
  }
}

}  // namespace ring
