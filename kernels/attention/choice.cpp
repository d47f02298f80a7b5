// Measured choice of the attention kernel: the key of a choice, and a call that can be repeated for measuring.

#include "kernels/choice.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "kernels/attention/attention.h"
#include "kernels/attention/blocks.h"

namespace ring {
namespace {

// Rounds up to a power of two, or to a power of four if `even`.
std::uint64_t bucket(double n, bool even = false) {
  const std::uint64_t up = std::bit_ceil(static_cast<std::uint64_t>(std::ceil(n)));
  return even ? up << std::countr_zero(up) % 2 : up;
}

bool of_one_length(const std::vector<Span>& spans) {
  return std::ranges::all_of(spans, [&](const Span& s) { return s.count == spans[0].count; });
}

// Returns the part of the key that describes the sizes. Packed documents have different lengths in each step, but the
// mean number of keys per query stays about the same. Coarse buckets absorb most of the remaining variation.
std::string sizes(const Tensor& q, const Tensor& k, const std::vector<Span>& queries, const std::vector<Span>& keys) {
  double pairs = 0, rows = 0, columns = 0;
  for (std::size_t b = 0; b < std::min(queries.size(), keys.size()); ++b) {
    pairs += static_cast<double>(queries[b].count) * keys[b].count;
    rows += queries[b].count;
    columns += keys[b].count;
  }
  const bool packed = !of_one_length(queries) || !of_one_length(keys);
  const auto mean = [&](double n) { return bucket(n > 0 ? pairs / n : 0, packed); };
  return str(bucket(static_cast<double>(q.dim(0))), " x ", bucket(static_cast<double>(k.dim(0))), " tokens, ",
             packed ? "packed documents of " : "documents of ", mean(columns), " x ", mean(rows));
}

template <class Args>
std::string key_of(const Args& a, DType result) {
  return str(a.q.dtype(), " to ", result, ", ", a.q.dim(1), " of ", a.k.dim(1), " heads x ", a.q.dim(2), ", ",
             pattern_key(a.pattern), ", ", sizes(a.q, a.k, a.queries, a.keys), a.dropout.rate > 0 ? ", dropout" : "",
             a.soft_cap > 0 ? ", soft cap" : "");
}

constexpr double kEnough = 3e13;      // FLOPs that suffice to compare kernels: about 60 ms on an H200
constexpr std::int32_t kRows = 1024;  // spans are shortened to multiples of this many rows

template <class Args>
void cut(Args& a, double flops) {
  const double all = cost(a).flops;
  if (!a.pattern.is_dense() || all <= flops) return;
  const double share = std::sqrt(flops / all);
  for (std::vector<Span>* spans : {&a.queries, &a.keys})
    for (Span& s : *spans)
      if (s.count > kRows) s.count = std::max(1, static_cast<std::int32_t>(s.count * share) / kRows) * kRows;
}

// Returns a shortened call that can be repeated for measuring. A call without a carry overwrites its results, so it can
// be repeated in place. A call with a carry destroys the carry's contents, so it is measured without the carry and
// writes new tensors.
Attention repeatable(Attention a, const ExecContext& ctx) {
  limit_work(a, kEnough);
  if (!a.carry.defined()) return a;
  a.carry = {};
  a.out = ctx.empty(a.out.shape(), a.out.dtype(), Lifetime::run);
  a.lse = ctx.empty(a.lse.shape(), DType::f32, Lifetime::run);
  return a;
}
AttentionBackward repeatable(AttentionBackward a, const ExecContext& ctx) {
  limit_work(a, kEnough);
  if (!a.carry_dq.defined() && !a.carry_dk.defined()) return a;
  a.carry_dq = a.carry_dk = a.carry_dv = {};
  for (Tensor* t : {&a.dq, &a.dk, &a.dv}) *t = ctx.empty(t->shape(), t->dtype(), Lifetime::run);
  return a;
}

template <class Args>
const typename Kernel<Args>::Candidate& choose(const Kernel<Args>& slot, const Args& args, const ExecContext& ctx) {
  return choose_measured(
      slot, args, ctx, [](const Args& a) { return choice_key(a); },
      [](const Args& a, const ExecContext& c) { return repeatable(a, c); });
}

}  // namespace

// The key leaves out `shift`, which changes the samples but not their number, so that layers with
// different shifts share a choice.
std::string pattern_key(const Pattern& p) {
  std::string out = p.causal ? "causal" : "full";
  if (p.pool > 0) return str(out, " pools of ", p.pool);
  if (p.blocks) return str(out, " blocks of ", p.blocks->block(), " version ", p.blocks->first_version());
  const bool divided = !p.is_interval();
  if (divided) out += p.from_row ? " dilated" : " dilated from documents";
  for (const Branch& b : p.branches) {
    if (divided) out += b.segment == kNoSegment ? str(" all/", b.rate) : str(" ", b.segment, "/", b.rate);
    if (b.window > 0) out += str(" window ", b.window);
  }
  if (p.has_windows()) out += str(" sinks ", p.sinks);
  if (p.dedup) out += " dedup";
  return out;
}

std::string choice_key(const Attention& a) { return key_of(a, a.out.dtype()); }
std::string choice_key(const AttentionBackward& a) { return key_of(a, a.dq.dtype()); }

void limit_work(Attention& a, double flops) { cut(a, flops); }
void limit_work(AttentionBackward& a, double flops) { cut(a, flops); }

const Kernel<Attention>::Candidate& choose_fastest(const Kernel<Attention>& slot, const Attention& args,
                                                   const ExecContext& ctx) {
  return choose(slot, args, ctx);
}
const Kernel<AttentionBackward>::Candidate& choose_fastest(const Kernel<AttentionBackward>& slot,
                                                           const AttentionBackward& args, const ExecContext& ctx) {
  return choose(slot, args, ctx);
}

}  // namespace ring
