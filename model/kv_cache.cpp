#include "model/kv_cache.h"

#include <algorithm>
#include <utility>

#include "core/checked.h"
#include "kernels/attention/pools/weighted_pool.h"
#include "kernels/attention/seen_keys.h"
#include "model/patterns.h"

namespace ring {
namespace {

// Calls fn(row, token, count) for tokens [first, end): twice if they wrap around the ring's end.
template <class Fn>
void for_runs(const LayerCache& cache, std::int64_t first, std::int64_t end, const Fn& fn) {
  while (first < end) {
    const std::int64_t row = cache.row_of(first), count = std::min(end - first, cache.rows() - row);
    fn(row, first, count);
    first += count;
  }
}

// Adds the cache rows of a run of tokens, split at the ring's end.
void add_rows(const LayerCache& cache, KeyRun run, std::vector<CacheRows>& rows) {
  while (run.count > 0) {
    const std::int64_t row = cache.row_of(run.first), fits = (cache.rows() - row + run.stride - 1) / run.stride;
    const auto count = static_cast<std::int32_t>(std::min<std::int64_t>(run.count, fits));
    rows.push_back({static_cast<std::int32_t>(row), count, run.stride});
    run.first += count * run.stride;
    run.count -= count;
  }
}

}  // namespace

void LayerCache::append(const Tensor& k, const Tensor& v, const Sequences& seqs,
                        const std::vector<std::int32_t>& lengths, const std::vector<PoolWeights>& weights,
                        const ExecContext& ctx) const {
  RING_CHECK(k.stride(1) == k.dim(2) && v.stride(1) == v.dim(2), "a cache requires rows whose heads are adjacent");
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
    // If several tokens map to the same row of the ring, only the newest is copied.
    const std::int64_t sinks_end = std::clamp(sinks, before, end);
    for_runs(*this, before, sinks_end, copy_run);
    for_runs(*this, std::max(sinks_end, end - (rows() - sinks)), end, copy_run);
  }
  compute_pools(seqs, lengths, weights, ctx);
}

// Computes pools from the cached rows of their tokens. A layer with pools keeps the rows of all tokens.
void LayerCache::compute_pools(const Sequences& seqs, const std::vector<std::int32_t>& lengths,
                               const std::vector<PoolWeights>& weights, const ExecContext& ctx) const {
  for (std::size_t i = 0; i < pools.size(); ++i) {
    const Pools& p = pools[i];
    std::vector<PoolSegment> completed;
    for (std::size_t b = 0; b < lengths.size(); ++b) {
      const auto row = narrow<std::int32_t>(static_cast<std::int64_t>(b) * keys.dim(1));
      const std::int32_t before = lengths[b] / p.size,
                         end = (lengths[b] + seqs.offsets[b + 1] - seqs.offsets[b]) / p.size;
      if (before < end)
        completed.push_back(
            {.first = row + before * p.size, .count = (end - before) * p.size, .out = row + p.first + before});
    }
    if (!completed.empty()) compute_pools(p, weights.empty() ? nullptr : &weights[i], completed, ctx);
  }
}

void LayerCache::compute_pools(const Pools& p, const PoolWeights* weights, const std::vector<PoolSegment>& completed,
                               const ExecContext& ctx) const {
  const auto rows = [](const Tensor& t) { return t.view({t.dim(0) * t.dim(1), t.dim(2), t.dim(3)}); };
  const Tensor k = rows(keys), v = rows(values);
  if (!weights) {
    for (const Tensor& all : {k, v}) block_pool_kernel({all, all, completed, p.size}, ctx);
    return;
  }
  for (PoolSegment r : completed) {
    const std::int64_t first = std::exchange(r.out, 0), count = r.count / p.size;
    weighted_pool_kernel({k,
                          v,
                          v,
                          weights->positions,
                          weights->query,
                          k.narrow(0, first, count),
                          v.narrow(0, first, count),
                          ctx.empty({count, k.dim(1), p.size}),
                          {r}},
                         ctx);
  }
}

void LayerCache::set_key_rows(const Pattern& pattern, const std::vector<std::int32_t>& tokens,
                              AttentionDecode& args) const {
  const SeenKeys seen(pattern);
  std::vector<KeyRun> runs;
  args.rows.clear();
  args.starts = {0};
  for (std::size_t b = 0; b < tokens.size(); ++b)
    for (std::int32_t head = 0; head < keys.dim(2); ++head) {
      const std::int32_t token = tokens[b];
      runs.clear();
      if (selection)
        add_kept_blocks(
            selection->block(), token + 1, [&](std::int32_t k) { return selection->is_selected(b, head, k); }, runs);
      else
        seen.add(head, token, token + 1, runs);
      for (const KeyRun& run : runs) add_rows(*this, run, args.rows);
      for (const Pools& p : pools)
        if (token >= p.size) args.rows.push_back({p.first, token / p.size, 1});
      args.starts.push_back(static_cast<std::int32_t>(args.rows.size()));
    }
}

KvCache::KvCache(const ModelConfig& c, std::int64_t batch, std::int64_t max, const ExecContext& ctx)
    : lengths(static_cast<std::size_t>(batch), 0), capacity(max) {
  const DType type = activation_type(ctx.precision);
  const std::vector<std::int64_t> sharing = selection_sources(c);
  for (const Pattern& p : patterns_of(c)) {
    const auto layer = static_cast<std::int64_t>(layers.size());
    const std::int64_t first = sharing[layers.size()];
    const std::optional<std::int64_t> reach = SeenKeys(p).max_needed_keys();
    const std::int64_t rows = reach ? std::min(capacity, p.sinks + *reach) : capacity;
    std::vector<LayerCache::Pools> pools;
    std::int64_t all = rows;
    for (const std::int32_t size : p.pools) {
      pools.push_back({size, narrow<std::int32_t>(all)});
      all += capacity / size;
    }
    const Shape shape{batch, all, c.kv_heads, c.head_dim};
    const auto room = [&] { return ctx.empty(shape, type, Lifetime::run); };
    layers.push_back({room(), room(), std::min<std::int64_t>(p.sinks, rows)});
    LayerCache& own = layers.back();
    own.shares = first >= 0 && first != layer;
    if (own.shares)
      own.selection = layers[static_cast<std::size_t>(first)].selection;
    else if (p.selects())
      own.selection = std::make_shared<SelectionCache>(p, batch, capacity, c.heads, c.kv_heads, c.head_dim, ctx);
    if (learns_blocks(attention_of(c, layer)))
      own.index = std::make_shared<IndexCache>(batch, capacity, p.blocks->block());
    own.pools = std::move(pools);
  }
}

void KvCache::check_room(const Sequences& seqs) const {
  RING_CHECK(seqs.offsets.size() == lengths.size() + 1, seqs.offsets.size(), " offsets for a cache of ", lengths.size(),
             " sequences");
  for (std::size_t b = 0; b < lengths.size(); ++b) {
    const std::int64_t count = seqs.offsets[b + 1] - seqs.offsets[b];
    RING_CHECK(lengths[b] + count <= capacity, "sequence ", b, " holds ", lengths[b], " tokens and receives ", count,
               " more, but the cache has room for only ", capacity);
  }
}

}  // namespace ring
