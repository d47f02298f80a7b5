#include "parallel/context/layout.h"

#include <algorithm>
#include <limits>
#include <numeric>

#include "core/check.h"
#include "core/checked.h"
#include "kernels/attention/blocks.h"
#include "parallel/context/balance.h"

namespace ring {

// Kernels are fastest on whole tiles. Chunks with many tiles stay nearly equal if they differ by one tile.
constexpr std::int64_t kTile = 128, kManyTiles = 64;

// Returns the block size of a balanced layout in tokens: the largest multiple of the patterns' blocks that fits a
// kernel tile, divides a rank's tokens and leaves a rank many blocks. If there is none, returns the least common
// multiple of the patterns' blocks, or 1 if that multiple does not divide a rank's tokens.
static std::int64_t balanced_block(const std::vector<Pattern>& patterns, std::int64_t tokens_of_rank) {
  std::int64_t unit = 1;
  for (const Pattern& p : patterns)
    if (p.blocks) unit = std::lcm(unit, std::int64_t{p.blocks->block()});
  if (tokens_of_rank % unit) unit = 1;
  std::int64_t block = std::max(kTile / unit, std::int64_t{1}) * unit;
  while (block > unit && (tokens_of_rank % block || tokens_of_rank / block < kManyTiles)) block -= unit;
  return block;
}

ContextLayout::ContextLayout(const std::vector<Pattern>& layers, std::int64_t kv_heads, std::int64_t length, int ranks)
    : kind_(ContextLayoutKind::balanced),
      length_(length),
      ranks_(ranks),
      pairs_(std::make_shared<PairCounter>(layers, kv_heads)) {
  RING_CHECK(ranks >= 1 && length >= 1, "context layout: ", length, " tokens for ", ranks, " ranks");
  if (length % ranks)
    fail("parallel.cp_layout: balanced gives each of the ", ranks, " ranks of parallel.cp the same number of tokens, ",
         "but they do not divide the ", length, " tokens of a row. Set model.context to a multiple of ", ranks,
         ", or parallel.cp_layout: auto");
  block_ = balanced_block(layers, length / ranks);
}

ContextLayout::ContextLayout(ContextLayoutKind kind, std::int64_t length, int ranks, std::int64_t align)
    : kind_(kind), length_(length), ranks_(ranks), chunks_(static_cast<std::size_t>(std::max(ranks, 0))) {
  RING_CHECK(ranks >= 1 && length >= 1 && align >= 1, "context layout: ", length, " tokens for ", ranks,
             " ranks in multiples of ", align, ": each must be at least 1");
  const std::int64_t n = kind == ContextLayoutKind::zigzag ? 2 * std::int64_t{ranks} : ranks;
  const std::int64_t units = (length + align - 1) / align;
  for (std::int64_t c = 0; c < n; ++c) {
    const std::int64_t begin = std::min(length, units * c / n * align);
    const std::int64_t end = std::min(length, units * (c + 1) / n * align);
    if (begin == end) continue;
    chunks_[static_cast<std::size_t>(std::min(c, kind == ContextLayoutKind::zigzag ? n - 1 - c : c))].push_back(
        {begin, end});
  }
}

const ContextLayout::Chunks& ContextLayout::chunks(int rank) const {
  RING_CHECK(!pairs_, "context layout: the chunks of a balanced layout depend on documents; see shards()");
  return chunks_.at(static_cast<std::size_t>(rank));
}

std::int64_t ContextLayout::tokens_of_rank(int rank) const {
  if (pairs_) return length_ / ranks_;
  std::int64_t sum = 0;
  for (const Chunk& c : chunks(rank)) sum += c.end - c.begin;
  return sum;
}

// documents: the documents of one row, with positions counted from the row's start.
std::vector<ContextLayout::Chunks> ContextLayout::balanced_chunks(const std::vector<Span>& documents) const {
  std::vector<Chunks> chunks(static_cast<std::size_t>(ranks_));
  const auto blocks = divide_evenly(pairs_->pairs_by_block(documents, length_, block_), ranks());
  for (std::size_t r = 0; r < chunks.size(); ++r)
    for (const std::int64_t b : blocks[r]) {
      Chunks& to = chunks[r];
      if (to.empty() || to.back().end != b * block_) to.push_back({b * block_, b * block_});
      to.back().end += block_;
    }
  return chunks;
}

ContextShards ContextLayout::shards(int rank, std::int64_t rows, std::vector<Span> documents) const {
  RING_CHECK(rank >= 0 && rank < ranks(), "context layout: rank ", rank, " of ", ranks());
  RING_CHECK(rows >= 0 && rows <= std::numeric_limits<std::int32_t>::max() / length_, "context layout: ", rows,
             " rows of ", length_, " tokens do not fit into 32 bits");
  ContextShards s{rank, sorted_by_row(std::move(documents)),
                  std::vector<std::vector<LocalRows>>(static_cast<std::size_t>(ranks_))};
  auto document = s.documents.begin();
  std::vector<std::int32_t> held(s.rows_by_rank.size());  // rows of each rank so far
  for (std::int64_t row = 0; row < rows; ++row) {
    const auto begin = narrow<std::int32_t>(row * length_);
    std::vector<Span> of_row;
    for (; document != s.documents.end() && document->first < begin + length_; ++document) {
      of_row.push_back(*document);
      of_row.back().first -= begin;
    }
    const std::vector<Chunks> chunks = pairs_ ? balanced_chunks(of_row) : chunks_;
    for (std::size_t r = 0; r < chunks.size(); ++r)
      for (const Chunk& c : chunks[r]) {
        const auto count = static_cast<std::int32_t>(c.end - c.begin);
        s.rows_by_rank[r].push_back({held[r], begin + static_cast<std::int32_t>(c.begin), count});
        held[r] += count;
      }
  }
  return s;
}

std::vector<std::int32_t> global_rows(const std::vector<LocalRows>& rows) {
  std::vector<std::int32_t> global;
  for (const LocalRows& r : rows)
    for (std::int32_t i = 0; i < r.count; ++i) global.push_back(r.global + i);
  return global;
}

std::vector<ContextLayout> slices_of_parts(const ContextLayout& parts, int ranks, std::int64_t align) {
  std::vector<ContextLayout> slices;
  for (int part = 0; part < parts.ranks(); ++part)
    slices.emplace_back(ContextLayoutKind::contiguous, parts.tokens_of_rank(part), ranks, align);
  return slices;
}

std::int64_t context_align(const std::vector<Pattern>& patterns, std::int64_t length, std::int64_t chunks) {
  std::int64_t align = 1;
  const auto take = [&](std::int64_t unit) {
    const std::int64_t both = std::lcm(align, unit);
    if (both * chunks <= length) align = both;
  };
  for (const Pattern& p : patterns) {
    if (p.blocks) take(p.blocks->block());
    for (const Branch& b : p.branches)
      if (b.segment != kNoSegment) take(b.segment);
  }
  if (kTile * kManyTiles * chunks <= length) take(kTile);
  return align;
}

ContextLayout choose_layout(ContextLayoutChoice choice, const std::vector<Pattern>& patterns, std::int64_t kv_heads,
                            std::int64_t length, int ranks) {
  if (choice == ContextLayoutChoice::balanced) return {patterns, kv_heads, length, ranks};
  const bool dense = std::all_of(patterns.begin(), patterns.end(), [](const Pattern& p) { return p.is_dense(); });
  ContextLayoutKind kind = dense ? ContextLayoutKind::zigzag : ContextLayoutKind::contiguous;
  if (choice == ContextLayoutChoice::zigzag) kind = ContextLayoutKind::zigzag;
  if (choice == ContextLayoutChoice::contiguous) kind = ContextLayoutKind::contiguous;
  const std::int64_t chunks = kind == ContextLayoutKind::zigzag ? 2 * std::int64_t{ranks} : ranks;
  return {kind, length, ranks, context_align(patterns, length, chunks)};
}

}  // namespace ring
