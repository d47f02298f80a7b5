#include "parallel/context/selected/shard_selection.h"

#include <algorithm>

#include "autograd/selected/block_means.h"
#include "core/checked.h"
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

// Returns the lists of kept blocks, copied to the host. In a dry run without memory, the lists count as full, with the
// first blocks of the document, since messages have space for all keys in any case.
std::vector<std::int32_t> on_host(const Tensor& kept, const Stream& stream) {
  if (has_bytes(kept)) return to_host<std::int32_t>(kept.view({kept.numel()}), stream);
  std::vector<std::int32_t> full;
  const auto room = narrow<std::int32_t>(kept.dim(-1));
  for (std::int64_t row = 0; room > 0 && row < kept.numel() / room; ++row)
    for (std::int32_t k = 0; k < room; ++k) full.push_back(k);
  return full;
}

}  // namespace

void select_for_own_rows(Attention& a, const ContextShards& shards, ContextExchange& exchange, const ExecContext& ctx) {
  if (!a.pattern.selects() || a.selection.kept.defined()) return;
  const std::int64_t kv_heads = a.k.dim(1);
  const std::vector<Tensor> means = block_means({a.q, a.k}, kv_heads, shards, a.pattern, exchange, ctx);
  const std::int64_t room = max_kept_blocks(a.pattern, kv_heads, shards.documents);
  a.selection.kept = ctx.zeros({means[0].dim(0), kv_heads, room}, DType::i32);  // other ranks' rows are not used
  block_select_kernel({.queries = means[0],
                       .keys = means[1],
                       .kept = a.selection.kept,
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
  const std::int64_t heads = own.kept.dim(1), room = own.kept.dim(2);
  const Tensor parts = ctx.zeros({shards.ranks(), max, heads, room}, DType::i32);
  const Tensor mine = parts.narrow(0, shards.rank, 1).view({max, heads, room});
  std::int64_t at = 0;
  for (const SelectedRows& r : local[static_cast<std::size_t>(shards.rank)]) {
    move_rows(mine, own.kept, {.to = at, .first = r.kept + r.begin, .count = r.end - r.begin}, ctx);
    at += r.end - r.begin;
  }
  ranks.all_gather(parts, mine, ctx);
  const std::vector<std::int32_t> kept = on_host(parts, ctx.stream);
  KeyReferences all(own.kept.dim(0), heads, room);
  for (std::int64_t r = 0; r < shards.ranks(); ++r) {
    const std::int32_t* next = kept.data() + r * max * heads * room;
    for (const SelectedRows& run : local[static_cast<std::size_t>(r)]) {
      all.add(next, run.kept + run.begin, run.end - run.begin);
      next += (run.end - run.begin) * heads * room;
    }
  }
  return all;
}

}  // namespace ring
