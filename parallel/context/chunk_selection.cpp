#include "parallel/context/chunk_selection.h"

#include <algorithm>

#include "autograd/selected/block_means.h"
#include "core/fake.h"
#include "kernels/attention/blocks.h"
#include "kernels/attention/selected/block_select.h"
#include "kernels/elementwise.h"
#include "parallel/context/rows.h"

namespace ring {
namespace {

void add_rows(const Tensor& sums, const Tensor& x, const ExecContext& ctx) {
  const Tensor to = sums.narrow(0, 0, x.dim(0));
  Tensor exact = x;
  if (x.dtype() != DType::f32) {
    exact = ctx.empty(x.shape());
    cast_kernel({x, exact}, ctx);
  }
  axpby_kernel({.x = exact, .y = to, .out = to, .alpha = 1, .beta = 1}, ctx);
}

Tensor for_run(const Shape& shape, DType type, const ExecContext& ctx) { return ctx.zeros(shape, type, Lifetime::run); }

}  // namespace

void ChunkMeans::select(Attention& a, const SelectionPart& all, const ContextShards& shards, const ExecContext& ctx) {
  if (!a.pattern.selects() || a.selection.kept.defined()) return;
  const ChunkBlocks chunk = chunk_blocks(shards, a.pattern);
  const std::int64_t heads = a.k.dim(1), dim = a.k.dim(2), before = shards.rank - 1;
  if (!keys_.defined()) {
    keys_ = for_run({chunk.all, heads, dim}, DType::f32, ctx);
    last_queries_ = for_run({shards.ranks(), heads, dim}, DType::f32, ctx);
  }
  // A block's query mean selects for the next block, so the previous chunk's last mean comes first.
  const Tensor queries = ctx.empty({chunk.count() + 1, heads, dim});
  if (before >= 0) move_rows(queries, last_queries_, {.first = before, .count = 1}, ctx);
  chunk_means(a.q, queries, chunk.first - 1, shards, a.pattern, ctx);
  chunk_means(a.k, keys_, 0, shards, a.pattern, ctx);
  move_rows(last_queries_, queries, {.to = shards.rank, .first = chunk.count(), .count = 1}, ctx);
  std::vector<SelectedRows> documents = blocks_with_local_rows(shards, a.pattern);
  std::int32_t blocks = 0;  // blocks of the longest document, up to the end of this chunk
  for (SelectedRows& d : documents) {
    d.queries -= chunk.first - 1, d.kept -= chunk.first;
    blocks = std::max(blocks, d.end);
  }
  const std::int64_t room = max_kept_blocks(*all.pattern.blocks, all.heads.count, blocks);
  a.selection.kept = ctx.empty({chunk.count(), heads, room}, DType::i32);
  block_select_kernel({.queries = queries,
                       .keys = keys_,
                       .kept = a.selection.kept,
                       .documents = std::move(documents),
                       .blocks = a.pattern.blocks,
                       .scale = scale_of_means(a.scale, a.q.dim(1), heads)},
                      ctx);
}

Tensor JoinedBlocks::join(const Tensor& own, const ChunkBlocks& chunk, const ExecContext& ctx) {
  if (!rows_.defined()) rows_ = for_run({chunk.all, own.dim(1)}, own.dtype(), ctx);
  copy(rows_.narrow(0, chunk.first, chunk.count()), own, ctx.stream);
  return rows_.narrow(0, 0, chunk.end);
}

Tensor JoinedBlocks::join_backward(const Tensor& gradient, const ChunkBlocks& chunk, const ExecContext& ctx) {
  if (!gradients_.defined()) gradients_ = for_run(rows_.shape(), DType::f32, ctx);
  add_rows(gradients_, gradient, ctx);
  const Tensor own = gradients_.narrow(0, chunk.first, chunk.count()), out = ctx.empty(own.shape(), gradient.dtype());
  if (out.dtype() == DType::f32)
    copy(out, own, ctx.stream);
  else
    cast_kernel({own, out}, ctx);
  return out;
}

// In a dry run without memory all blocks count as chosen.
ChosenBlocks::ChosenBlocks(const BlockSelection& s, const Pattern& pattern, const ContextShards& shards,
                           const Stream& stream)
    : known_(has_bytes(s.kept)) {
  if (!known_) return;
  const std::int32_t first = chunk_blocks(shards, pattern).first;
  const std::vector<std::int32_t> kept = to_host<std::int32_t>(s.kept.view({s.kept.numel()}), stream);
  const std::int64_t row = s.kept.dim(1) * s.kept.dim(2);
  for (const SelectedRows& d : blocks_with_local_rows(shards, pattern)) {
    Document& of =
        documents_.emplace_back(Document{d.kept - first, std::vector<bool>(static_cast<std::size_t>(d.end))});
    for (std::int64_t n = (of.first_row + d.begin) * row; n < (of.first_row + d.end) * row; ++n)
      if (const std::int32_t block = kept[static_cast<std::size_t>(n)]; block != kNoBlock)
        of.chosen[static_cast<std::size_t>(block)] = true;
  }
}

ChunkStore::Parts ChosenBlocks::parts_of(const KeyRequest& need, const Pattern& pattern, std::int64_t row) const {
  if (!known_ || !need.whole) return std::nullopt;
  const std::int64_t size = pattern.blocks->block();
  std::vector<ChunkStore::Elements> keys;
  for (const AttentionCall& call : need.calls)
    for (std::size_t b = 0; b < call.keys.size(); ++b) {
      const Span& s = call.keys[b];
      const auto of = std::ranges::find(documents_, call.block_rows[b], &Document::first_row);
      RING_CHECK(of != documents_.end(), "chunk selection: no document has block row ", call.block_rows[b]);
      const std::int64_t start = s.position - pattern.origin(s.document);
      for (std::int64_t at = 0; at < s.count;) {
        const std::int64_t block = (start + at) / size,
                           end = std::min<std::int64_t>(s.count, (block + 1) * size - start);
        if (block < std::ssize(of->chosen) && of->chosen[static_cast<std::size_t>(block)])
          keys.push_back({(s.first + at) * row, (end - at) * row});
        at = end;
      }
    }
  std::ranges::sort(keys, {}, &ChunkStore::Elements::first);
  std::vector<ChunkStore::Elements> parts;
  for (const std::int64_t from : {std::int64_t{0}, need.rows * row})  // keys, then values
    for (const ChunkStore::Elements& e : keys) {
      const std::int64_t first = from + e.first;
      if (!parts.empty() && parts.back().first + parts.back().count == first)
        parts.back().count += e.count;
      else
        parts.push_back({first, e.count});
    }
  return parts;
}

}  // namespace ring
