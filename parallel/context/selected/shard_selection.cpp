#include "parallel/context/selected/shard_selection.h"

#include <algorithm>

#include "autograd/selected/block_means.h"
#include "core/fake.h"
#include "kernels/attention/selected/block_select.h"
#include "parallel/context/rows.h"

namespace ring {
namespace {

// Returns for each rank the rows of the block selection that are for the rank's own queries.
std::vector<std::vector<SelectedRows>> local_blocks_of_all_ranks(ContextShards shards, const Pattern& pattern) {
  std::vector<std::vector<SelectedRows>> local;
  for (shards.rank = 0; shards.rank < shards.ranks(); ++shards.rank)
    local.push_back(blocks_with_local_rows(shards, pattern));
  return local;
}

std::int64_t rows_of(const std::vector<SelectedRows>& runs) {
  std::int64_t rows = 0;
  for (const SelectedRows& r : runs) rows += r.end - r.begin;
  return rows;
}

// Returns the bits, copied to the host. In a dry run without memory all blocks count as selected, which takes the most
// memory.
std::vector<std::int32_t> on_host(const Tensor& bits, const Stream& stream) {
  if (!has_bytes(bits)) return std::vector<std::int32_t>(static_cast<std::size_t>(bits.numel()), -1);
  return to_host<std::int32_t>(bits.view({bits.numel()}), stream);
}

}  // namespace

void select_for_own_rows(Attention& a, const ContextShards& shards, ContextExchange& exchange, const ExecContext& ctx) {
  if (!a.pattern.selects() || a.selection.bits.defined()) return;
  const std::int64_t kv_heads = a.k.dim(1);
  const std::vector<Tensor> means = block_means({a.q, a.k}, kv_heads, shards, a.pattern, exchange, ctx);
  std::int32_t max = 0;
  for (const Span& d : shards.documents) max = std::max(max, blocks_of(a.pattern, d));
  a.selection.bits = ctx.zeros({means[0].dim(0), kv_heads, (max + 31) / 32}, DType::i32);
  block_select_kernel({.queries = means[0],
                       .keys = means[1],
                       .bits = a.selection.bits,
                       .documents = blocks_with_local_rows(shards, a.pattern),
                       .blocks = a.pattern.blocks,
                       .scale = scale_of_means(a.scale, a.q.dim(1), kv_heads)},
                      ctx);
}

KeyReferences gather_references(const BlockSelection& own, const Pattern& pattern, const ContextShards& shards,
                                ContextTransfers& ranks, const ExecContext& ctx) {
  const std::vector<std::vector<SelectedRows>> local = local_blocks_of_all_ranks(shards, pattern);
  std::int64_t max = 0;
  for (const std::vector<SelectedRows>& runs : local) max = std::max(max, rows_of(runs));
  const std::int64_t heads = own.bits.dim(1), words = own.bits.dim(2);
  const Tensor parts = ctx.zeros({shards.ranks(), max, heads, words}, DType::i32);
  const Tensor mine = parts.narrow(0, shards.rank, 1).view({max, heads, words});
  std::int64_t at = 0;
  for (const SelectedRows& r : local[static_cast<std::size_t>(shards.rank)]) {
    move_rows(mine, own.bits, {.to = at, .first = r.bits + r.begin, .count = r.end - r.begin}, ctx);
    at += r.end - r.begin;
  }
  ranks.all_gather(parts, mine, ctx);
  const std::vector<std::int32_t> bits = on_host(parts, ctx.stream);
  KeyReferences all(own.bits.dim(0), heads, words);
  for (std::int64_t r = 0; r < shards.ranks(); ++r) {
    const std::int32_t* next = bits.data() + r * max * heads * words;
    for (const SelectedRows& run : local[static_cast<std::size_t>(r)]) {
      all.add(next, run.bits + run.begin, run.end - run.begin);
      next += (run.end - run.begin) * heads * words;
    }
  }
  return all;
}

}  // namespace ring
