#include "model/kv_cache.h"

#include <algorithm>

#include "kernels/attention/blocks.h"
#include "kernels/attention/head_segment.h"
#include "model/patterns.h"

namespace ring {
namespace {

// fn(row, token, count) for tokens [first, end): twice where the ring's end lies between them.
template <class Fn>
void for_runs(const LayerCache& cache, std::int64_t first, std::int64_t end, const Fn& fn) {
  while (first < end) {
    const std::int64_t row = cache.row_of(first), count = std::min(end - first, cache.rows() - row);
    fn(row, first, count);
    first += count;
  }
}

void add_tokens(const LayerCache& cache, std::int64_t first, std::int64_t end, std::vector<CacheRows>& rows) {
  for_runs(cache, first, end, [&](std::int64_t row, std::int64_t, std::int64_t count) {
    rows.push_back({static_cast<std::int32_t>(row), static_cast<std::int32_t>(count), 1});
  });
}

// What a token sees in one pass, as this head has it.
void add_pass(const LayerCache& cache, const BranchPass& pass, const Pattern& pattern, std::int32_t token, int head,
              std::vector<CacheRows>& rows) {
  const std::int32_t start = token / pass.segment * pass.segment, p = token - start;
  const HeadSegment segment(pass, {start, p, p + 1, start, 0, p + 1, pattern.sinks}, pass.offset(head));
  if (segment.q_first == segment.q_end) return;  // no sample of this head
  const Columns c = segment.columns<Stationary::q>(segment.q_first);
  const std::int32_t hole = std::clamp(c.hole, c.first, c.end), hole_end = std::clamp(c.hole_end, hole, c.end);
  for (const auto& [first, end] : {std::pair(c.first, hole), std::pair(hole_end, c.end)}) {
    const std::int32_t at = segment.k_row + first * segment.rate;
    if (segment.rate == 1)
      add_tokens(cache, at, at + end - first, rows);
    else if (first < end)
      rows.push_back({at, end - first, segment.rate});
  }
}

// Kept blocks that lie side by side are one range.
void add_blocks(const LayerCache& cache, const BlockPattern& blocks, std::int32_t token, int head,
                std::vector<CacheRows>& rows) {
  const std::int32_t size = blocks.block(), last = token / size;
  for (std::int32_t k = 0, first = 0; k <= last; k = std::max(k + 1, first)) {
    for (first = k; first <= last && blocks.keeps(head, last, first);) ++first;
    add_tokens(cache, k * size, std::min(first * size, token + 1), rows);
  }
}

}  // namespace

void LayerCache::append(const Tensor& k, const Tensor& v, const Sequences& seqs,
                        const std::vector<std::int32_t>& lengths, const ExecContext& ctx) const {
  RING_CHECK(k.stride(1) == k.dim(2) && v.stride(1) == v.dim(2), "a cache takes rows whose heads are adjacent");
  const std::size_t size = size_of(k.dtype()), row_bytes = static_cast<std::size_t>(k.dim(1) * k.dim(2)) * size;
  for (std::size_t b = 0; b + 1 < seqs.offsets.size(); ++b) {
    const std::int64_t before = lengths[b], end = before + seqs.offsets[b + 1] - seqs.offsets[b];
    const auto copy_run = [&](std::int64_t row, std::int64_t token, std::int64_t count) {
      for (const auto& [to, from] : {std::pair(keys, k), std::pair(values, v)})
        ctx.stream.impl().copy_rows(to.narrow(0, static_cast<std::int64_t>(b), 1).narrow(1, row, 1).raw(), row_bytes,
                                    from.narrow(0, seqs.offsets[b] + token - before, 1).raw(),
                                    static_cast<std::size_t>(from.stride(0)) * size, row_bytes,
                                    static_cast<std::size_t>(count));
    };
    // Of tokens that would share a row of the ring only the newest is copied.
    const std::int64_t sinks_end = std::clamp(sinks, before, end);
    for_runs(*this, before, sinks_end, copy_run);
    for_runs(*this, std::max(sinks_end, end - (rows() - sinks)), end, copy_run);
  }
}

void LayerCache::choose_rows(const Pattern& pattern, const std::vector<std::int32_t>& tokens,
                             AttentionDecode& args) const {
  const std::vector<BranchPass> passes = passes_of(pattern);
  args.rows.clear();
  args.starts = {0};
  for (const std::int32_t token : tokens)
    for (int head = 0; head < keys.dim(2); ++head) {
      for (const BranchPass& pass : passes)
        if (pass.listed)
          add_blocks(*this, *pattern.blocks, token, head, args.rows);
        else
          add_pass(*this, pass, pattern, token, head, args.rows);
      args.starts.push_back(static_cast<std::int32_t>(args.rows.size()));
    }
}

KvCache::KvCache(const ModelConfig& c, std::int64_t batch, std::int64_t most, const ExecContext& ctx)
    : lengths(static_cast<std::size_t>(batch), 0), capacity(most) {
  const DType type = activation_type(ctx.precision);
  for (std::int64_t i = 0; i < c.layers; ++i) {
    const AttentionConfig& a = attention_of(c, i);
    const bool all = a.kind != AttentionKind::window;
    const std::int64_t rows = all ? capacity : std::min(capacity, a.sinks + a.window);
    const Shape shape{batch, rows, c.kv_heads, c.head_dim};
    layers.push_back({ctx.empty(shape, type), ctx.empty(shape, type), std::min(a.sinks, rows)});
  }
}

void KvCache::check_room(const Sequences& seqs) const {
  RING_CHECK(seqs.offsets.size() == lengths.size() + 1, seqs.offsets.size(), " offsets for a cache of ", lengths.size(),
             " sequences");
  for (std::size_t b = 0; b < lengths.size(); ++b) {
    const std::int64_t count = seqs.offsets[b + 1] - seqs.offsets[b];
    RING_CHECK(lengths[b] + count <= capacity, "sequence ", b, " holds ", lengths[b], " tokens and gets ", count,
               " more, the cache has room for ", capacity);
  }
}

}  // namespace ring
