#include "model/kv_cache.h"

#include <algorithm>
#include <utility>

#include "core/checked.h"
#include "kernels/row_encoding.h"

namespace ring {
namespace {

// Calls fn(row, token, count) for tokens [first, end): twice if they wrap around the ring's end.
template <class Fn>
void for_runs(const LayerCache& cache, std::int64_t first, std::int64_t end, const Fn& fn) {
  while (first < end) {
    const std::int64_t row = cache.row_of(first), count = std::min(end - first, cache.token_rows - row);
    fn(row, first, count);
    first += count;
  }
}

// Adds the cache rows of a run of tokens, split at the ring's end.
void add_rows(const LayerCache& cache, KeyRun run, std::vector<CacheRows>& rows) {
  while (run.count > 0) {
    const std::int64_t row = cache.row_of(run.first), fits = (cache.token_rows - row + run.stride - 1) / run.stride;
    const auto count = static_cast<std::int32_t>(std::min<std::int64_t>(run.count, fits));
    rows.push_back({static_cast<std::int32_t>(row), count, run.stride});
    run.first += count * run.stride;
    run.count -= count;
  }
}

// Stores rows [first, first + count) of x [N,Hk,D], with heads adjacent, from row `row` of all rows of the cache on.
// scales: undefined if the cache has the type of x.
void store_rows(const Tensor& cache, const Tensor& scales, std::int64_t row, const Tensor& x, std::int64_t first,
                std::int64_t count, const ExecContext& ctx) {
  const auto rows = [&](const Tensor& t, const Shape& all) { return t.view(all).narrow(0, row, count); };
  const Tensor to = rows(cache, {-1, x.dim(1), x.dim(2)});
  if (scales.defined()) return encode_rows_kernel({x, {to, rows(scales, {-1, x.dim(1)})}, first}, ctx);
  const std::size_t size = size_of(x.dtype()), row_bytes = static_cast<std::size_t>(x.dim(1) * x.dim(2)) * size;
  ctx.stream.impl().copy_rows(to.raw(), row_bytes, x.narrow(0, first, 1).raw(),
                              static_cast<std::size_t>(x.stride(0)) * size, row_bytes, static_cast<std::size_t>(count));
}

}  // namespace

void LayerCache::append(const NewTokens& tokens, const Tensor& q, const Tensor& k, const Tensor& v) const {
  RING_CHECK(k.stride(1) == k.dim(2) && v.stride(1) == v.dim(2), "a cache requires rows whose heads are adjacent");
  for (std::size_t b = 0; b < tokens.lengths.size(); ++b) {
    const std::int64_t before = tokens.lengths[b], end = tokens.end(b);
    const auto store_run = [&](std::int64_t row, std::int64_t token, std::int64_t count) {
      const std::int64_t to = static_cast<std::int64_t>(b) * keys.dim(1) + row,
                         from = tokens.seqs.offsets[b] + token - before;
      store_rows(keys, key_scales, to, k, from, count, tokens.run.ctx);
      store_rows(values, value_scales, to, v, from, count, tokens.run.ctx);
    };
    // If several tokens map to the same row of the ring, only the newest is stored.
    const std::int64_t sinks_end = std::clamp(sinks, before, end);
    for_runs(*this, before, sinks_end, store_run);
    for_runs(*this, std::max(sinks_end, end - (token_rows - sinks)), end, store_run);
  }
  for (const auto& variant : variants) variant->append(*this, tokens, q);
}

void LayerCache::decode(const Pattern& pattern, AttentionDecode args, const NewTokens& tokens) const {
  for (const auto& variant : variants) variant->prepare(*this, pattern, args.scale, tokens);
  set_key_rows(pattern, tokens.lengths, args);
  args.k = keys, args.v = values, args.k_scales = key_scales, args.v_scales = value_scales;
  const auto computed = std::ranges::count_if(variants, [&](const auto& v) { return v->decode(args, tokens); });
  RING_CHECK(computed <= 1, computed, " variants of attention in a layer compute the output of generated tokens");
  if (computed == 0) attention_decode_kernel(args, tokens.run.ctx);
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
      const auto deciding =
          std::ranges::count_if(variants, [&](const auto& v) { return v->add_keys(b, head, token, runs); });
      RING_CHECK(deciding <= 1, deciding, " variants of attention in a layer decide which keys a token sees");
      if (deciding == 0) seen.add(head, token, token + 1, runs);
      for (const KeyRun& run : runs) add_rows(*this, run, args.rows);
      for (const auto& variant : variants) variant->add_rows(token, args.rows);
      args.starts.push_back(static_cast<std::int32_t>(args.rows.size()));
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
