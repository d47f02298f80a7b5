#include "autograd/selected/block_means.h"

#include <algorithm>
#include <utility>

#include "core/checked.h"
#include "kernels/attention/blocks.h"
#include "kernels/attention/selection.h"
#include "kernels/elementwise.h"

namespace ring {
namespace {

// Adjacent rows of a document that a rank holds. The first and the last block may be partial.
struct Piece {
  PoolSegment rows;
  float first_share = 1, last_share = 1;  // the piece's share of the document's rows in its first and last block
};

// Returns how many of the rows [begin, end) are in this block. Rows count from the start of block 0.
std::int32_t rows_in(std::int32_t block, std::int32_t size, std::int32_t begin, std::int32_t end) {
  return std::min(end, (block + 1) * size) - std::max(begin, block * size);
}

// Returns the piece with rows [begin, end) of the micro-batch, which this rank holds from row `at` on. document: all
// rows of the document in the micro-batch.
Piece piece_of(const PoolSegment& document, std::int32_t size, std::int32_t begin, std::int32_t end, std::int32_t at) {
  const std::int32_t from = document.leading_gap, to = from + document.count;
  const std::int32_t b = from + begin - document.first, e = from + end - document.first;
  const auto share = [&](std::int32_t block) {
    return static_cast<float>(rows_in(block, size, b, e)) / static_cast<float>(rows_in(block, size, from, to));
  };
  return {{.first = at, .count = e - b, .leading_gap = b % size, .out = document.out + b / size},
          share(b / size),
          share((e - 1) / size)};
}

std::vector<Piece> pieces_of(const ContextShards& shards, const Pattern& pattern) {
  std::vector<Piece> pieces;
  for (const PoolSegment& d : block_rows(pattern, shards.documents))
    for (const LocalRows& h : shards.rows_by_rank[static_cast<std::size_t>(shards.rank)]) {
      const std::int32_t begin = std::max(d.first, h.global), end = std::min(d.first + d.count, h.global + h.count);
      if (begin < end) pieces.push_back(piece_of(d, pattern.blocks->block(), begin, end, h.first + begin - h.global));
    }
  return pieces;
}

// Splits pieces into groups in which no block occurs twice; consecutive pieces may share a block.
std::vector<std::vector<Piece>> split_into_disjoint(const std::vector<Piece>& pieces, std::int32_t size) {
  std::vector<std::vector<Piece>> groups;
  for (const Piece& p : pieces) {
    const auto free = [&](const std::vector<Piece>& group) {
      const PoolSegment& last = group.back().rows;
      return last.out + last.blocks(size) <= p.rows.out;
    };
    const auto group = std::ranges::find_if(groups, free);
    (group == groups.end() ? groups.emplace_back() : *group).push_back(p);
  }
  return groups;
}

void scale_row(const Tensor& means, std::int64_t row, float factor, const ExecContext& ctx) {
  const Tensor one = means.narrow(0, row, 1);
  if (factor != 1) axpby_kernel({.x = one, .y = {}, .out = one, .alpha = factor}, ctx);
}

// Views x [N,C] as heads of 64 columns, so that more threads share the work; as one head if 64 does not divide C. Each
// column is pooled on its own, so the result is the same.
Tensor as_heads(const Tensor& x) {
  constexpr std::int64_t kHead = 64;
  return x.split_dim(1, x.dim(1) % kHead ? x.dim(1) : kHead);
}

// Computes the pieces' contribution to the means; other blocks stay 0. x [N,H,D], means [blocks,Hk,D] of zeros.
void add_part(const Tensor& x, const Tensor& means, const std::vector<Piece>& pieces, std::int32_t block,
              const ExecContext& ctx) {
  std::vector<PoolSegment> rows;
  for (const Piece& p : pieces) rows.push_back(p.rows);
  block_pool_kernel({x, means, std::move(rows), block}, ctx);
  for (const Piece& p : pieces) {
    const std::int64_t last = p.rows.out + p.rows.blocks(block) - 1;
    scale_row(means, p.rows.out, p.first_share, ctx);
    if (last != p.rows.out) scale_row(means, last, p.last_share, ctx);
  }
}

// Computes this rank's contribution to the means. x [N,H,D], means [blocks,Hk,D] of zeros.
void add_parts(const Tensor& x, const Tensor& means, const std::vector<Piece>& own, std::int32_t block,
               const ExecContext& ctx) {
  bool first = true;
  for (const std::vector<Piece>& pieces : split_into_disjoint(own, block)) {
    const Tensor part = std::exchange(first, false) ? means : ctx.zeros(means.shape());
    add_part(x, part, pieces, block, ctx);
    if (part.raw() != means.raw()) axpby_kernel({.x = part, .y = means, .out = means, .beta = 1}, ctx);
  }
}

// Returns how ranks that share a chunk divide it, with rows counted in the micro-batch instead of in the chunk.
ContextShards in_whole_sequence(const ContextShards& shards) {
  ContextShards whole{shards.rank, shards.chunks->documents, shards.rows_by_rank};
  const std::int32_t begin = shards.chunks->rows_by_rank[static_cast<std::size_t>(shards.chunks->rank)].front().global;
  for (std::vector<LocalRows>& of_rank : whole.rows_by_rank)
    for (LocalRows& h : of_rank) h.global += begin;
  return whole;
}

}  // namespace

std::vector<PoolSegment> block_rows(const Pattern& pattern, const std::vector<Span>& spans) {
  const std::vector<std::int32_t> first = first_blocks(pattern, spans);
  std::vector<PoolSegment> rows;
  for (std::size_t b = 0; b < spans.size(); ++b)
    rows.push_back({.first = spans[b].first,
                    .count = spans[b].count,
                    .leading_gap = narrow<std::int32_t>(spans[b].position - pattern.origin(spans[b].document)),
                    .out = first[b]});
  return rows;
}

Tensor block_means(const Tensor& x, std::vector<PoolSegment> rows, std::int64_t blocks, std::int32_t block,
                   const ExecContext& ctx) {
  const Tensor means = ctx.empty({blocks, x.dim(1)});
  block_pool_kernel({as_heads(x), as_heads(means), std::move(rows), block}, ctx);
  return means;
}

Tensor block_means(const Tensor& x, const std::vector<Span>& documents, const Pattern& pattern,
                   const ExecContext& ctx) {
  return block_means(x, block_rows(pattern, documents), first_blocks(pattern, documents).back(),
                     pattern.blocks->block(), ctx);
}

std::vector<Tensor> block_means(const std::vector<Tensor>& x, std::int64_t kv_heads, const ContextShards& shards,
                                const Pattern& pattern, ContextExchange& exchange, const ExecContext& ctx) {
  const std::int64_t blocks = first_blocks(pattern, shards.documents).back(), dim = x.at(0).dim(2);
  const Tensor all = ctx.zeros({std::ssize(x), blocks, kv_heads, dim});
  std::vector<Tensor> means;
  for (std::int64_t i = 0; i < std::ssize(x); ++i) {
    means.push_back(all.narrow(0, i, 1).view({blocks, kv_heads, dim}));
    add_parts(x[static_cast<std::size_t>(i)], means.back(), pieces_of(shards, pattern), pattern.blocks->block(), ctx);
  }
  exchange.sum(all, ctx);
  return means;
}

Tensor block_means(const Tensor& x, const ContextShards& shards, const Pattern& pattern, ContextExchange& exchange,
                   const ExecContext& ctx) {
  const Tensor heads = as_heads(x);
  const Tensor means = block_means({heads}, heads.dim(1), shards, pattern, exchange, ctx).at(0);
  return means.view({means.dim(0), x.dim(1)});
}

ChunkBlocks chunk_blocks(const ContextShards& shards, const Pattern& pattern) {
  const std::vector<Piece> pieces = pieces_of(shards, pattern);
  ChunkBlocks chunk{.all = first_blocks(pattern, shards.documents).back()};
  if (pieces.empty()) return chunk;
  chunk.first = pieces.front().rows.out;
  chunk.end = pieces.back().rows.out + pieces.back().rows.blocks(pattern.blocks->block());
  for (const Piece& p : pieces)
    RING_CHECK(p.first_share == 1 && p.last_share == 1, "chunk ", shards.rank, " of a sequence ends within a block");
  return chunk;
}

void chunk_means(const Tensor& x, const Tensor& means, std::int32_t first_row, const ContextShards& shards,
                 const Pattern& pattern, const ExecContext& ctx) {
  std::vector<PoolSegment> rows;
  for (const Piece& p : pieces_of(shards, pattern)) {
    rows.push_back(p.rows);
    rows.back().out -= first_row;
  }
  block_pool_kernel({x, means, std::move(rows), pattern.blocks->block()}, ctx);
}

Tensor chunk_means(const Tensor& x, const ChunkBlocks& chunk, const ContextShards& shards, const Pattern& pattern,
                   ContextExchange& exchange, const ExecContext& ctx) {
  if (!shards.chunks) {
    const Tensor means = ctx.empty({chunk.count(), x.dim(1)});
    chunk_means(as_heads(x), as_heads(means), chunk.first, shards, pattern, ctx);
    return means;
  }
  const Tensor means = ctx.zeros({chunk.count(), x.dim(1)});
  std::vector<Piece> pieces = pieces_of(in_whole_sequence(shards), pattern);
  for (Piece& p : pieces) p.rows.out -= chunk.first;
  add_parts(as_heads(x), as_heads(means), pieces, pattern.blocks->block(), ctx);
  exchange.sum(means, ctx);
  return means;
}

std::vector<SelectedRows> blocks_with_local_rows(const ContextShards& shards, const Pattern& pattern) {
  const std::vector<std::int32_t> first = first_blocks(pattern, shards.documents);
  const std::int32_t block = pattern.blocks->block();
  std::vector<SelectedRows> local;
  for (const Piece& p : pieces_of(shards, pattern)) {
    const std::int32_t document = *(std::ranges::upper_bound(first, p.rows.out) - 1);
    const std::int32_t begin = p.rows.out - document, end = begin + p.rows.blocks(block);
    const bool follows = !local.empty() && local.back().kept == document && local.back().end >= begin;
    if (follows)
      local.back().end = std::max(local.back().end, end);
    else
      local.push_back({.queries = document, .keys = document, .kept = document, .begin = begin, .end = end});
  }
  return local;
}

}  // namespace ring
