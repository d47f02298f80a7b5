#include "parallel/context/long_branches.h"

#include <algorithm>
#include <utility>

#include "core/checked.h"
#include "kernels/attention/attention.h"
#include "kernels/attention/sampled_rows.h"

namespace ring {
namespace {

// Returns the length of the chunks; 0 if they differ, or if the sequence is not a single document.
std::int64_t equal_chunk(const ContextShards& shards) {
  const std::vector<LocalRows>& first = shards.rows_by_rank[0];
  if (first.size() != 1 || shards.documents.size() != 1) return 0;
  std::int32_t at = 0;
  for (const std::vector<LocalRows>& rows : shards.rows_by_rank) {
    if (rows != std::vector<LocalRows>{{0, at, first[0].count}}) return 0;
    at += first[0].count;
  }
  return shards.documents[0] == Span{0, at, 0, 0} ? first[0].count : 0;
}

// The position of a chunk in a long branch, in units of samples.
struct Place {
  std::int64_t segment;       // number of the segment in the sequence
  std::int64_t first, count;  // the chunk's own samples
  std::int64_t each;          // samples of a shorter segment; 0 if all pairs are counted

  Place(const SplitPattern& p, const LongBranch& b, int chunk)
      : segment(chunk * p.chunk / b.segment),
        first((chunk * p.chunk - segment * b.segment) / b.rate),
        count(p.chunk / b.rate),
        each(b.shorter / b.rate) {}

  // Calls fn(first query, number of queries, number of keys) for each kernel call. Queries are numbered from the
  // chunk's first sample. The keys are the first samples of the segment.
  template <class Fn>
  void for_calls(const Fn& fn) const {
    if (each == 0) return fn(std::int64_t{0}, count, first + count);
    for (std::int64_t at = 0; at < count;) {
      const std::int64_t before = (first + at) / each * each, n = std::min(count - at, before + each - first - at);
      if (before > 0) fn(at, n, before);
      at += n;
    }
  }
};

Span span_of(std::int64_t first, std::int64_t count, std::int64_t position) {
  return {narrow<std::int32_t>(first), narrow<std::int32_t>(count), narrow<std::int32_t>(position), 0};
}

SampledRows rows_of(const Place& place, const LongBranch& b, const Pattern& pattern, const Tensor& keys) {
  return {place.count, b.rate, pattern.shift, keys.dim(1)};
}

Tensor gathered(const Tensor& t, const SampledRows& rows, const ExecContext& ctx) {
  const Tensor out = ctx.empty({rows.count, t.dim(1), t.dim(2)}, t.dtype());
  gather_samples_kernel({t, out, rows}, ctx);
  return out;
}

KvPair part_of(const KvPair& all, std::int64_t first, std::int64_t count) {
  return {{}, all.k.narrow(0, first, count), all.v.narrow(0, first, count)};
}

}  // namespace

std::optional<SplitPattern> split_pattern(const Pattern& pattern, const ContextShards& shards) {
  const std::int64_t chunk = equal_chunk(shards), all = shards.tokens();
  if (chunk == 0 || pattern.blocks || !pattern.has_samples()) return {};
  SplitPattern split{chunk, pattern, {}};
  split.within_chunks.branches.clear();
  std::int64_t shorter = 0;
  for (const Branch& b : pattern.branches) {
    const std::int64_t segment = std::min<std::int64_t>(b.segment, all), rate = b.rate;
    if (b.window > 0 || segment % rate != 0 || chunk % rate != 0) return {};
    if (chunk % segment == 0) {
      split.within_chunks.branches.push_back(b);
    } else {
      if (segment % chunk != 0 || (pattern.dedup && shorter % rate != 0)) return {};
      split.branches.push_back({segment, rate, pattern.dedup ? shorter : 0});
    }
    shorter = segment;
  }
  const bool usable = !split.branches.empty() && !split.within_chunks.branches.empty();
  return usable ? std::optional(split) : std::nullopt;
}

ChunkStore::Key LongBranches::key_of(const SplitPattern& p, std::size_t branch, std::int64_t segment) const {
  return {layer_, first_head_, narrow<int>(segment * (p.branches[branch].segment / p.chunk)), branch};
}

// Makes the samples of a segment available. Samples of earlier segments are stored, because they are needed
// again when the chunks are visited in reverse order.
LongBranches::Samples& LongBranches::enter(const SplitPattern& p, std::size_t branch, std::int64_t segment, bool stores,
                                           const Tensor& like, const ExecContext& ctx) {
  samples_.resize(p.branches.size());
  Samples& s = samples_[branch];
  if (segment == s.segment) return s;
  const LongBranch& b = p.branches[branch];
  const Shape shape{2, b.segment / b.rate, like.dim(1), like.dim(2)};
  if (segment < s.segment) {
    s.keys = kv_pair(store_.keys(key_of(p, branch, segment)).view(shape));
    store_.drop(key_of(p, branch, segment));
    if (segment > 0) store_.prefetch_keys(key_of(p, branch, segment - 1));
  } else {
    if (s.segment >= 0 && stores) store_.put(key_of(p, branch, s.segment), s.keys.both.view({s.keys.both.numel()}));
    s.keys = kv_pair(ctx.empty(shape, like.dtype(), Lifetime::run));
  }
  s.segment = segment;
  return s;
}

void LongBranches::attend(const SplitPattern& p, const Attention& args, int chunk, bool stores, const Tensor& sum,
                          const ExecContext& ctx) {
  for (std::size_t i = 0; i < p.branches.size(); ++i) {
    const Place place(p, p.branches[i], chunk);
    const SampledRows rows = rows_of(place, p.branches[i], args.pattern, args.k);
    const KvPair& keys = enter(p, i, place.segment, stores, args.k, ctx).keys;
    const KvPair own = part_of(keys, place.first, place.count);
    gather_samples_kernel({args.k, own.k, rows}, ctx);
    gather_samples_kernel({args.v, own.v, rows}, ctx);
    const Tensor out = ctx.empty({rows.count, args.q.dim(1), args.q.dim(2)}),
                 lse = ctx.empty({args.q.dim(1), rows.count});
    Attention call{.q = gathered(args.q, rows, ctx), .k = {}, .v = {}, .out = out, .lse = lse, .scale = args.scale};
    bool any = false;
    place.for_calls([&](std::int64_t first, std::int64_t count, std::int64_t seen) {
      const KvPair some = part_of(keys, 0, seen);
      call.k = some.k, call.v = some.v;
      call.queries = {span_of(first, count, place.first + first)}, call.keys = {span_of(0, seen, 0)};
      if (any) call.carry = out;
      attention_kernel(call, ctx);
      any = true;
    });
    if (any) merge_samples_kernel({sum, args.lse, out, lse, rows}, ctx);
  }
}

void LongBranches::attend_backward(const SplitPattern& p, const AttentionBackward& args, int chunk, const Tensor& dq,
                                   const KvPair& own, const ExecContext& ctx) {
  for (std::size_t i = 0; i < p.branches.size(); ++i) {
    const Place place(p, p.branches[i], chunk);
    const SampledRows rows = rows_of(place, p.branches[i], args.pattern, args.k);
    Samples& s = enter(p, i, place.segment, true, args.k, ctx);
    if (std::exchange(s.gradients_segment, s.segment) != s.segment)
      s.gradients = kv_pair(ctx.zeros(s.keys.both.shape(), DType::f32, Lifetime::run));
    const Tensor lse = ctx.empty({args.q.dim(1), rows.count}),
                 dq_samples = ctx.empty({rows.count, args.q.dim(1), args.q.dim(2)});
    gather_sample_lse_kernel({args.lse, lse, rows}, ctx);
    AttentionBackward call{.q = gathered(args.q, rows, ctx),
                           .k = {},
                           .v = {},
                           .out = gathered(args.out, rows, ctx),
                           .lse = lse,
                           .dout = gathered(args.dout, rows, ctx),
                           .dq = dq_samples,
                           .scale = args.scale};
    bool any = false;
    place.for_calls([&](std::int64_t first, std::int64_t count, std::int64_t seen) {
      const KvPair some = part_of(s.keys, 0, seen), gradients = part_of(s.gradients, 0, seen);
      call.k = some.k, call.v = some.v;
      call.dk = call.carry_dk = gradients.k, call.dv = call.carry_dv = gradients.v;
      call.queries = {span_of(first, count, place.first + first)}, call.keys = {span_of(0, seen, 0)};
      if (any) call.carry_dq = dq_samples;
      attention_backward_kernel(call, ctx);
      any = true;
    });
    if (any) add_samples_kernel({dq_samples, dq, rows}, ctx);
    const KvPair complete = part_of(s.gradients, place.first, place.count);
    add_samples_kernel({complete.k, own.k, rows}, ctx);
    add_samples_kernel({complete.v, own.v, rows}, ctx);
  }
}

}  // namespace ring
