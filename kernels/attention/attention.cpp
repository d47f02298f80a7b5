#include "kernels/attention/attention.h"

#include <algorithm>
#include <cmath>

#include "kernels/attention/blocks.h"
#include "kernels/attention/list_shape.h"

namespace ring {
namespace {

void check_view(std::string_view op, std::string_view name, const Tensor& t, const Tensor& like, bool or_f32 = false) {
  RING_CHECK(t.defined() && t.shape() == like.shape() &&
                 (t.dtype() == like.dtype() || (or_f32 && t.dtype() == DType::f32)) &&
                 (t.dim(2) <= 1 || t.stride(2) == 1),
             op, ": ", name, " is ", describe(t), t.defined() ? str(" with strides ", t.strides()) : "", ", expected ",
             describe(like), or_f32 ? " or f32" : "", " with unit last stride");
}

void check_geometry(std::string_view op, const Tensor& q, const Tensor& k) {
  RING_CHECK(q.defined() && q.shape().size() == 3 && k.defined() && k.shape().size() == 3, op, ": q is ", describe(q),
             ", k is ", describe(k), ", expected [tokens, heads, head dim]");
  RING_CHECK(q.dim(2) > 0 && q.dim(2) % 8 == 0, op, ": head dim ", q.dim(2), " is not a multiple of 8");
  RING_CHECK(k.dim(1) > 0 && q.dim(1) % k.dim(1) == 0, op, ": ", q.dim(1), " query heads over ", k.dim(1), " KV heads");
  RING_CHECK(k.dim(2) == q.dim(2) && k.dtype() == q.dtype(), op, ": q is ", describe(q), ", k is ", describe(k));
}

void check_spans(std::string_view op, const char* name, const std::vector<Span>& spans, std::int64_t rows) {
  std::int64_t next = 0;
  for (const Span& s : sorted_by_row(spans)) {
    RING_CHECK(s.first >= next && s.count > 0 && s.first + std::int64_t{s.count} <= rows && s.document >= 0 &&
                   s.position >= s.document,
               op, ": the ", name, " rows ", s.first, " to ", s.first + std::int64_t{s.count}, " at position ",
               s.position, " of a document from ", s.document, " do not fit between ", next, " and ", rows);
    next = s.first + std::int64_t{s.count};
  }
}

void check_dropout(std::string_view op, const AttentionDropout& d, const Tensor& q) {
  RING_CHECK(d.rate >= 0 && d.rate < 1, op, ": dropout rate ", d.rate, " is not in [0, 1)");
  if (d.rate == 0) return;
  RING_CHECK(d.first_row >= 0 && d.first_head >= 0 && d.first_head + q.dim(1) <= kDropoutHeads, op,
             ": dropout of rows from ", d.first_row, " and heads from ", d.first_head, " on, for ", describe(q));
  RING_CHECK(
      !d.rows.defined() || (d.rows.dtype() == DType::i32 && d.rows.is_contiguous() && d.rows.numel() == q.dim(0)), op,
      ": dropout's rows are ", describe(d.rows), ", expected ", q.dim(0), " i32");
}

template <class Args>
void check_common(const char* op, const Args& a) {
  check_geometry(op, a.q, a.k);
  check_view(op, "q", a.q, a.q);
  check_view(op, "k", a.k, a.k);
  check_view(op, "v", a.v, a.k);
  check(a.pattern, op);
  RING_CHECK(a.pattern.pools.empty(), op, ": pools have calls of their own (pooled_attention.h)");
  RING_CHECK(a.queries.size() == a.keys.size(), op, ": ", a.queries.size(), " spans of queries, ", a.keys.size(),
             " of keys");
  check_spans(op, "query", a.queries, a.q.dim(0));
  check_spans(op, "key", a.keys, a.k.dim(0));
  RING_CHECK(a.lse.defined() && a.lse.dtype() == DType::f32 && a.lse.shape() == (Shape{a.q.dim(1), a.q.dim(0)}) &&
                 a.lse.is_contiguous(),
             op, ": lse is ", describe(a.lse), " for ", a.q.dim(1), " heads and ", a.q.dim(0), " tokens");
  check_dropout(op, a.dropout, a.q);
  RING_CHECK(a.soft_cap >= 0 && std::isfinite(a.soft_cap), op, ": soft_cap is ", a.soft_cap,
             ", expected a positive number, or 0");
  check(a.selection, a.pattern, a.queries, a.keys, a.k.dim(1), op);
}

void check_carry(const char* op, const char* name, const Tensor& t, const Tensor& like) {
  if (!t.defined()) return;
  RING_CHECK(t.dtype() == DType::f32 && t.shape() == like.shape() && (t.dim(2) <= 1 || t.stride(2) == 1), op, ": ",
             name, " is ", describe(t), ", expected f32 of the shape of ", describe(like));
}

double f32_bytes(const Tensor& t) { return 4.0 * static_cast<double>(t.numel()); }

// Returns how many passes visit a row on average. The pattern has one pass per branch, and the pass of a branch of
// rate r visits every r-th row.
double visits(const Pattern& p) {
  double sum = 0;
  for (const Branch& b : p.branches) sum += 1.0 / b.rate;
  return sum;
}

}  // namespace

Cost cost(const Attention& a) {
  Cost c = cost_of(a.q, {a.q, a.k, a.v, a.out, a.lse}, attention_flops(4, a.q, a.k, a.pattern, a.queries, a.keys));
  const double carry = f32_bytes(a.out);
  if (a.pattern.branches.size() > 1)
    c.bytes = visits(a.pattern) * (bytes_of({a.q, a.k, a.v}) + 2 * carry) + carry + bytes_of({a.out});
  if (a.carry.defined()) c.bytes += carry;
  return c;
}

namespace {

// Returns true if GPUs need two kernels for deterministic results, one for dq and one for dk and dv
// (kernels/attention/cuda/sm90.cu). Both compute the scores, so together they execute 7 GEMMs instead of 5.
bool in_two_kernels(const Pattern& p, std::int64_t dim) {
  return dim > 128 || p.blocks || p.sinks > 0 ||
         std::ranges::any_of(passes_of(p), [](const BranchPass& pass) { return pass.finer > 0; });
}

// Returns the time that the call's kept pairs take on a GPU, relative to the time that they would take if they were
// divided evenly among all multiprocessors. A thread block computes kKeyBlock keys of a KV head. If there are few keys
// and KV heads, the GPU waits for the block of keys that most queries see: in causal attention, the first block. Block
// lists are split (list_cuts.cuh), so their work is divided evenly.
double unevenness(const AttentionBackward& a, double pairs) {
  constexpr std::int32_t kKeyBlock = 128;
  constexpr double kMultiprocessors = 132;  // of an H100 or H200
  if (a.pattern.blocks || a.pattern.branches.size() > 1) return 1;
  double largest = 0;
  for (std::size_t b = 0; b < a.keys.size(); ++b) {
    Span first = a.keys[b];
    first.count = std::min(first.count, kKeyBlock);
    largest = std::max(largest, kept_pairs(a.pattern, {a.queries[b]}, {first}, a.k.dim(1)));
  }
  const double all = static_cast<double>(a.k.dim(1)) * pairs;
  return all > 0 ? std::max(1.0, largest * kMultiprocessors / all) : 1;
}

// Returns the FLOPs of the kept pairs. On GPUs, adds the FLOPs that are executed twice if there are two kernels, and
// the FLOPs that idle multiprocessors could execute.
double executed_flops(const AttentionBackward& a) {
  const double pairs = kept_pairs(a.pattern, a.queries, a.keys, a.k.dim(1));
  const double kept = 10 * static_cast<double>(a.q.dim(1) * a.q.dim(2)) * pairs;
  if (a.q.device().backend == Backend::cpu) return kept;
  return (in_two_kernels(a.pattern, a.q.dim(2)) ? 1.4 : 1) * unevenness(a, pairs) * kept;
}

}  // namespace

Cost cost(const AttentionBackward& a) {
  Cost c = cost_of(a.q, {a.q, a.k, a.v, a.out, a.lse, a.dout, a.dq, a.dk, a.dv}, executed_flops(a));
  const double dq = f32_bytes(a.dq), sums = dq + f32_bytes(a.dk) + f32_bytes(a.dv);
  if (a.pattern.branches.size() > 1)
    c.bytes = visits(a.pattern) * (bytes_of({a.q, a.k, a.v, a.out, a.dout}) + 2 * sums) + 2 * sums +
              bytes_of({a.dq, a.dk, a.dv});
  else
    c.bytes += 3 * dq;
  c.bytes += bytes_of({a.carry_dq, a.carry_dk, a.carry_dv});
  return c;
}

void check(const Attention& a) {
  constexpr const char* op = "attention";
  check_common(op, a);
  check_view(op, "out", a.out, a.q, true);
  check_carry(op, "carry", a.carry, a.q);
}

void check(const AttentionBackward& a) {
  constexpr const char* op = "attention_backward";
  check_common(op, a);
  check_view(op, "out", a.out, a.q);
  check_view(op, "dout", a.dout, a.q);
  check_view(op, "dq", a.dq, a.q, true);
  check_view(op, "dk", a.dk, a.k, true);
  check_view(op, "dv", a.dv, a.k, true);
  RING_CHECK(a.carry_dk.defined() == a.carry_dv.defined(), op, ": the carries of dk and dv must be given together");
  check_carry(op, "carry_dq", a.carry_dq, a.dq);
  check_carry(op, "carry_dk", a.carry_dk, a.dk);
  check_carry(op, "carry_dv", a.carry_dv, a.dv);
}

namespace {

// Returns the size in floats of the partial sums of dq on CPUs (kernels/attention/cpu/backward.cpp): one partial sum
// for each task of a KV head and span except the first task. There are about two tasks per thread. All tasks have the
// same work, so in a causal span later tasks have more keys and fewer queries.
double share_floats(const AttentionBackward& a, int threads) {
  const double groups = static_cast<double>(a.queries.size()) * static_cast<double>(a.k.dim(1));
  const double tasks = threads > 1 ? std::ceil(2 * threads / std::max(1.0, groups)) : 1;
  double share = 0;  // size of the partial sums, as a multiple of dq's
  for (double t = 1; t < tasks; ++t) share += std::sqrt(1 - t / tasks);
  return share * static_cast<double>(a.q.numel());
}

// Returns the shape of the block lists that GPUs build from a call's selection.
template <class Args>
cuda::SelectedShape list_shape(const Args& a, Stationary owner) {
  cuda::SelectedShape shape{owner, a.pattern.blocks->block(), a.k.dim(1), a.selection.kept.dim(2)};
  const BranchPass pass = passes_of(a.pattern).front();
  for (const SegmentPair& p : segment_pairs_of(pass, a.pattern, a.queries, a.keys, a.selection.rows)) shape.add(p);
  return shape;
}

}  // namespace

std::size_t list_bytes(const Attention& a) {
  return a.selection.kept.defined() ? static_cast<std::size_t>(list_shape(a, Stationary::q).bytes()) : 0;
}
// Returns the size of the query lists or of the key lists, whichever is larger: they are not needed at the same time.
std::size_t list_bytes(const AttentionBackward& a) {
  if (!a.selection.kept.defined()) return 0;
  const auto bytes = [&](Stationary owner) { return static_cast<std::size_t>(list_shape(a, owner).bytes()); };
  return std::max(bytes(Stationary::q), bytes(Stationary::kv));
}

namespace {

// Returns the size in bytes of the partial sums of split lists (SplitParts).
std::size_t split_bytes(const AttentionBackward& a) {
  if (!a.selection.kept.defined()) return 0;
  return static_cast<std::size_t>(2 * list_shape(a, Stationary::kv).lists() * kListRows * a.k.dim(2)) * sizeof(float);
}

}  // namespace

// Returns the size in bytes of the block lists and, on GPUs, of the dropout RNG keys (one per query row and head).
std::size_t scratch_bytes(const Attention& a, const ExecContext& ctx) {
  if (ctx.stream.device().backend == Backend::cpu) return 0;
  const std::int64_t keys = a.dropout.rate == 0 ? 0 : a.lse.numel();
  return list_bytes(a) + static_cast<std::size_t>(keys) * sizeof(std::uint32_t);
}
// Returns the size in bytes of the scratch memory. GPUs need:
//   - row statistics
//   - f32 accumulators of dq in parts of 64 columns, each with a turn counter (kernels/attention/cuda/query_sums.cu);
//     cuDNN's accumulators have the same size
//   - f32 accumulators of all gradients if the pattern has several branches
//   - with dropout, one RNG key per query row and head
//   - block lists, and partial sums of split lists, if the pattern selects
std::size_t scratch_bytes(const AttentionBackward& a, const ExecContext& ctx) {
  const double rows = static_cast<double>(a.q.dim(0) * a.q.dim(1));
  const std::int64_t columns = (a.q.dim(2) + 63) / 64 * 64;
  const bool cpu = ctx.stream.device().backend == Backend::cpu, adds_up = !cpu && a.pattern.branches.size() > 1;
  double floats = cpu ? rows + share_floats(a, ctx.stream.impl().threads())
                      : rows * static_cast<double>(2 + columns + columns / 64);
  if (!cpu && a.dropout.rate > 0) floats += rows;
  if (adds_up && !a.carry_dq.defined()) floats += static_cast<double>(a.q.numel());
  if (adds_up && !a.carry_dk.defined()) floats += static_cast<double>(a.k.numel() + a.v.numel());
  return static_cast<std::size_t>(floats) * sizeof(float) + (cpu ? 0 : list_bytes(a) + split_bytes(a));
}

void check(const AttentionDecode& a) {
  constexpr const char* op = "attention_decode";
  RING_CHECK(a.q.defined() && a.q.shape().size() == 3 && a.q.dim(2) > 0 && a.q.dim(2) % 8 == 0, op, ": q is ",
             describe(a.q), ", expected [sequences, heads, head dim] with a head dim that is a multiple of 8");
  check_view(op, "q", a.q, a.q);
  check_view(op, "out", a.out, a.q);
  const auto check_cache = [&](const char* name, const Tensor& t, const Tensor& scales) {
    RING_CHECK(t.defined() && t.shape().size() == 4 && t.dim(0) == a.q.dim(0) && t.dim(3) == a.q.dim(2) &&
                   t.stride(3) == 1 && t.dtype() == (scales.defined() ? DType::u8 : a.q.dtype()),
               op, ": ", name, " is ", describe(t), (scales.defined() ? " with scales" : ""), " for queries ",
               describe(a.q));
    RING_CHECK(!scales.defined() || (scales.dtype() == DType::u8 && scales.is_contiguous() &&
                                     scales.shape() == Shape({t.dim(0), t.dim(1), t.dim(2)})),
               op, ": the scales of ", name, " are ", describe(scales), " for ", describe(t));
    RING_CHECK(t.dim(2) > 0 && a.q.dim(1) % t.dim(2) == 0, op, ": ", a.q.dim(1), " query heads over ", t.dim(2),
               " KV heads");
  };
  check_cache("k", a.k, a.k_scales);
  check_cache("v", a.v, a.v_scales);
  RING_CHECK(a.k_scales.defined() == a.v_scales.defined(), op, ": only one of k and v has scales");
  RING_CHECK(a.k.shape() == a.v.shape(), op, ": k is ", describe(a.k), ", v is ", describe(a.v));
  RING_CHECK(!a.sinks.defined() ||
                 (a.sinks.dtype() == a.q.dtype() && a.sinks.is_contiguous() && a.sinks.shape() == Shape({a.q.dim(1)})),
             op, ": sinks are ", describe(a.sinks), ", expected contiguous [Hq] in the type of q, ", describe(a.q));
  const std::int64_t lists = a.q.dim(0) * a.k.dim(2);
  RING_CHECK(static_cast<std::int64_t>(a.starts.size()) == lists + 1 && a.starts.front() == 0 &&
                 a.starts.back() == static_cast<std::int32_t>(a.rows.size()) &&
                 std::is_sorted(a.starts.begin(), a.starts.end()),
             op, ": ", a.starts.size(), " starts, expected ", lists + 1, " that rise from 0 to the ", a.rows.size(),
             " ranges of rows");
  for (const CacheRows& r : a.rows)
    RING_CHECK(r.first >= 0 && r.count >= 0 && r.stride >= 1 &&
                   (r.count == 0 || r.first + std::int64_t{r.count - 1} * r.stride < a.k.dim(1)),
               op, ": ", r.count, " rows from ", r.first, " on, every ", r.stride, ", of a cache of ", a.k.dim(1));
}

}  // namespace ring
