#include "parallel/context/layout.h"

#include <algorithm>
#include <limits>
#include <numeric>

#include "core/check.h"
#include "kernels/attention/blocks.h"

namespace ring {

// Kernels are fastest on whole tiles. Chunks with many tiles stay nearly equal if they differ by one tile.
constexpr std::int64_t kTile = 128, kManyTiles = 64;

ContextLayout::ContextLayout(ContextLayoutKind kind, std::int64_t length, int ranks, std::int64_t align)
    : length_(length), chunks_(static_cast<std::size_t>(std::max(ranks, 0))) {
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

std::int64_t ContextLayout::tokens_of_rank(int rank) const {
  std::int64_t sum = 0;
  for (const Chunk& c : chunks(rank)) sum += c.end - c.begin;
  return sum;
}

ContextShards ContextLayout::shards(int rank, std::int64_t rows, std::vector<Span> documents) const {
  RING_CHECK(rank >= 0 && rank < ranks(), "context layout: rank ", rank, " of ", ranks());
  RING_CHECK(rows >= 0 && rows <= std::numeric_limits<std::int32_t>::max() / length_, "context layout: ", rows,
             " rows of ", length_, " tokens do not fit into 32 bits");
  ContextShards s{rank, sorted_by_row(std::move(documents)), {}};
  for (const Chunks& chunks : chunks_) {
    std::vector<LocalRows>& held = s.rows_by_rank.emplace_back();
    std::int64_t first = 0;
    for (std::int64_t row = 0; row < rows; ++row)
      for (const Chunk& c : chunks) {
        held.push_back({static_cast<std::int32_t>(first), static_cast<std::int32_t>(row * length_ + c.begin),
                        static_cast<std::int32_t>(c.end - c.begin)});
        first += c.end - c.begin;
      }
  }
  return s;
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

ContextLayout choose_layout(ContextLayoutChoice choice, const std::vector<Pattern>& patterns, std::int64_t length,
                            int ranks) {
  const bool dense = std::all_of(patterns.begin(), patterns.end(), [](const Pattern& p) { return p.is_dense(); });
  ContextLayoutKind kind = dense ? ContextLayoutKind::zigzag : ContextLayoutKind::contiguous;
  if (choice == ContextLayoutChoice::zigzag) kind = ContextLayoutKind::zigzag;
  if (choice == ContextLayoutChoice::contiguous) kind = ContextLayoutKind::contiguous;
  const std::int64_t chunks = kind == ContextLayoutKind::zigzag ? 2 * std::int64_t{ranks} : ranks;
  return {kind, length, ranks, context_align(patterns, length, chunks)};
}

}  // namespace ring
