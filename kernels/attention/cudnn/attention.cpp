// Registers cuDNN's attention as a candidate: bf16, sequences of equal length, head dims of up to 256. All other calls,
// and those for which this cuDNN has no plan, are left to our own kernels. In a context-parallel ring, cuDNN computes
// each part in bf16, and the parts are merged or added in f32.
#include "kernels/attention/attention.h"

#include <cmath>
#include <optional>

#include "core/cuda/handles.h"
#include "core/cuda/launches.h"
#include "kernels/attention/cudnn/library.h"
#include "kernels/attention/cudnn/parts.h"
#include "kernels/attention/cudnn/plans.h"
#include "kernels/choice.h"

namespace ring::cudnn {
namespace {

constexpr std::int64_t kWidestHead = 256;
// For shorter sequences cuDNN is not faster, and for length 1 it has defects of its own.
constexpr std::int64_t kShortestForward = 64;
// If a call covers only some of its rows, cuDNN gets only lengths that are multiples of this number, because there are
// few of them: each length needs a plan, which takes long to build, and documents have new lengths in each step. Our
// own kernels get the other lengths.
constexpr std::int64_t kPartTile = 64;
// cuDNN's backward only gets lengths that are multiples of this number, which have no partial tile. cuDNN computes
// partial tiles wrongly if scores are far below zero (NaN; NVIDIA/cudnn-frontend issues 160, 1072, pull request 628;
// pytorch/pytorch issue 196678) and, before 9.15.1, in a replayed CUDA graph (release notes of the frontend, 1.16.0).
constexpr std::int64_t kBackwardTile = 128;
constexpr std::size_t kAlignment = 16;  // bytes; cuDNN does not check it, and returns wrong results without it

// Returns the rows of the spans if all spans have the same length and start at equal distances, else nullopt.
std::optional<Rows> rows_of(const std::vector<Span>& spans) {
  if (spans.empty()) return {};
  const std::int64_t count = spans[0].count;
  Rows r{static_cast<std::int64_t>(spans.size()), count, spans[0].first, count};
  if (spans.size() > 1) r.pitch = spans[1].first - spans[0].first;
  for (std::size_t b = 0; b < spans.size(); ++b)
    if (spans[b].count != count || spans[b].first != r.first + static_cast<std::int64_t>(b) * r.pitch) return {};
  if (count == 0 || r.pitch < count) return {};
  return r;
}

// The keys that a sequence's queries see: all keys, or the keys up to each query's own position. sees()
// returns nullopt in every other case.
enum class Sees : std::uint8_t { all, up_to_own };
std::optional<Sees> sees(const std::vector<Span>& queries, const std::vector<Span>& keys, bool causal) {
  if (!causal) return Sees::all;
  bool all = true, own = true;
  for (std::size_t b = 0; b < queries.size(); ++b) {
    const Span &q = queries[b], &k = keys[b];
    all = all && q.position >= k.position + k.count - 1;
    own = own && q.position == k.position && q.count == k.count;
  }
  if (own) return Sees::up_to_own;
  return all ? std::optional(Sees::all) : std::nullopt;
}

// A cuDNN problem, and the rows of the call's tensors that it covers.
struct Call {
  Problem problem;
  Rows queries, keys;
};

// Sets mask and window. Returns false unless attention is dense or has a causal window without sinks.
bool describe(Call& c, const Pattern& pattern, Sees seen) {
  Problem& p = c.problem;
  p.causal = seen == Sees::up_to_own;
  if (pattern.is_interval() && p.causal && pattern.sinks == 0) {
    const std::int32_t window = pattern.branches[0].window;
    p.window = window < p.keys ? window : 0;
    return true;
  }
  return pattern.is_dense();
}

bool aligned(const Tensor& t, std::int64_t first_row) {
  const std::int64_t step = kAlignment / static_cast<std::int64_t>(size_of(t.dtype()));
  return reinterpret_cast<std::uintptr_t>(t.raw()) % kAlignment == 0 && t.stride(0) % step == 0 &&
         t.stride(1) % step == 0 && first_row * t.stride(0) % step == 0;
}

// Sets the strides of a tensor of the call. Returns false if cuDNN cannot read the tensor.
bool take(View& to, const Tensor& t, const Rows& rows) {
  if (!t.defined() || t.dtype() != DType::bf16 || t.shape().size() != 3 || t.stride(2) != 1 || !aligned(t, rows.first))
    return false;
  to = {rows.pitch * t.stride(0), t.stride(0), t.stride(1)};
  return true;
}
// Returns the strides of a packed tensor of these rows, [total,H,D].
View packed(const Rows& rows, std::int64_t heads, std::int64_t dim) {
  return {rows.count * heads * dim, heads * dim, dim};
}
Tensor at(const Tensor& t, const Rows& rows) { return t.narrow(0, rows.first, t.dim(0) - rows.first); }

template <class Args>  // fields common to forward and backward
bool describe(Call& c, const Args& a) {
  if (!a.q.defined() || a.q.shape().size() != 3 || !a.k.defined() || a.k.shape().size() != 3) return false;
  const std::optional<Rows> queries = rows_of(a.queries), keys = rows_of(a.keys);
  if (!queries || !keys || queries->batch != keys->batch) return false;
  const std::optional<Sees> seen = sees(a.queries, a.keys, a.pattern.causal);
  Problem& p = c.problem;
  c.queries = *queries;
  c.keys = *keys;
  p.batch = queries->batch;
  p.queries = queries->count;
  p.keys = keys->count;
  if (!seen || a.dropout.rate > 0 || !describe(c, a.pattern, *seen)) return false;
  p.heads = a.q.dim(1);
  p.kv_heads = a.k.dim(1);
  p.dim = a.q.dim(2);
  p.scale = a.scale;
  return p.kv_heads > 0 && p.heads % p.kv_heads == 0 && p.dim > 0 && p.dim % 8 == 0 && p.dim <= kWidestHead &&
         std::isfinite(p.scale) && take(p.q, a.q, c.queries) && take(p.k, a.k, c.keys) && take(p.v, a.v, c.keys) &&
         a.lse.defined() && a.lse.dtype() == DType::f32 && a.lse.is_contiguous() &&
         a.lse.shape() == Shape{p.heads, a.q.dim(0)};
}

// Sets the strides of a log-sum-exp [Hq, rows] whose sequences start every `pitch` rows.
void strided_stats(Problem& p, std::int64_t rows, std::int64_t pitch) {
  p.stats_sequence = p.batch == 1 ? p.heads * rows : pitch;
  p.stats_head = rows;
}
void packed_stats(Problem& p) {  // strides of [batch, heads, length]
  p.stats_sequence = p.heads * p.queries;
  p.stats_head = p.queries;
}

// Returns true if cuDNN can write the call's tensors directly; otherwise it writes temporary tensors first.
bool in_place(const Call& c, const Attention& a) {
  return !a.carry.defined() && a.out.dtype() == DType::bf16 && c.queries.all_of(a.q.dim(0));
}
bool in_place(const Call& c, const AttentionBackward& a) {
  return !a.carry_dq.defined() && !a.carry_dk.defined() && a.dq.dtype() == DType::bf16 && a.dk.dtype() == DType::bf16 &&
         a.dv.dtype() == DType::bf16 && c.queries.all_of(a.q.dim(0)) && c.keys.all_of(a.k.dim(0));
}
bool aligned_all(std::initializer_list<const Tensor*> tensors) {
  return std::all_of(tensors.begin(), tensors.end(), [](const Tensor* t) { return !t->defined() || aligned(*t, 0); });
}

bool has_few_lengths(const Call& c, const Attention& a) {
  const bool whole = c.queries.all_of(a.q.dim(0)) && c.keys.all_of(a.k.dim(0));
  return whole || (c.problem.queries % kPartTile == 0 && c.problem.keys % kPartTile == 0);
}

std::optional<Call> call_of(const Attention& a) {
  Call c;
  if (a.soft_cap != 0 || !describe(c, a) || std::min(c.problem.queries, c.problem.keys) < kShortestForward) return {};
  if (!has_few_lengths(c, a)) return {};
  Problem& p = c.problem;
  if (in_place(c, a)) {
    strided_stats(p, a.q.dim(0), c.queries.pitch);
    if (!take(p.out, a.out, c.queries)) return {};
  } else {
    strided_stats(p, c.queries.total(), c.queries.count);
    p.out = packed(c.queries, p.heads, p.dim);
    if (!aligned_all({&a.out, &a.carry})) return {};
  }
  return c;
}

// Returns true if the workspace of cuDNN's deterministic backward exceeds the scratch memory that memory plans assume.
// It grows quadratically with the length, because this backward writes all of dS.
bool too_large(const Problem& p, const AttentionBackward& a, const ExecContext& ctx) {
  const double scores = static_cast<double>(p.batch * p.heads) * static_cast<double>(p.queries * p.keys);
  return p.deterministic && 2 * scores > static_cast<double>(scratch_bytes(a, ctx));
}

std::optional<Call> call_of(const AttentionBackward& a, const ExecContext& ctx) {
  Call c;
  Problem& p = c.problem;
  p.backward = true;
  p.deterministic = ctx.deterministic;
  if (a.soft_cap != 0 || !describe(c, a) || p.queries % kBackwardTile != 0 || p.keys % kBackwardTile != 0 ||
      too_large(p, a, ctx))
    return {};
  if (!take(p.out, a.out, c.queries) || !take(p.dout, a.dout, c.queries)) return {};
  if (!a.dq.defined() || !a.dk.defined() || !a.dv.defined()) return {};
  if (in_place(c, a)) {
    if (!take(p.dq, a.dq, c.queries) || !take(p.dk, a.dk, c.keys) || !take(p.dv, a.dv, c.keys)) return {};
  } else {
    p.dq = packed(c.queries, p.heads, p.dim);
    p.dk = p.dv = packed(c.keys, p.kv_heads, p.dim);
    if (!aligned_all({&a.dq, &a.dk, &a.dv, &a.carry_dq, &a.carry_dk, &a.carry_dv})) return {};
  }
  if (version() >= kStridedStatsInput && c.queries.all_of(a.q.dim(0)))
    strided_stats(p, a.q.dim(0), c.queries.pitch);
  else
    packed_stats(p);
  return c;
}

const Plan* plan_of(const std::optional<Call>& c, const ExecContext& ctx) {
  return c ? ctx.stream.impl().resource<Plans>().find(c->problem) : nullptr;
}

void run(const Problem& p, const Operands& operands, const ExecContext& ctx) {
  Plans& plans = ctx.stream.impl().resource<Plans>();
  const Plan* plan = plans.find(p);
  RING_CHECK(plan, "cuDNN attention: no plan for ", p.batch, " x ", p.queries, " tokens");
  const cuda::OnDevice on(ctx.stream.device().index);
  const auto bytes = static_cast<std::int64_t>(plan->workspace_bytes());
  const Tensor workspace = ctx.empty({bytes}, DType::u8);
  cuda::log_library_call(static_cast<cudaStream_t>(ctx.stream.native()), "cuDNN attention");
  plan->run(operands, bytes > 0 ? workspace.raw() : nullptr, plans.handle());
}

// Checks only what needs no cuDNN plan. Whether cuDNN supports a call is known once a plan is made, but the first plan
// opens libraries, which takes 0.3 s.
bool may_support_forward(const Attention& a, const ExecContext&) { return call_of(a).has_value(); }
bool may_support_backward(const AttentionBackward& a, const ExecContext& ctx) { return call_of(a, ctx).has_value(); }

bool supports_forward(const Attention& a, const ExecContext& ctx) { return plan_of(call_of(a), ctx) != nullptr; }

void run_forward(const Attention& a, const ExecContext& ctx) {
  const std::optional<Call> c = call_of(a);
  RING_CHECK(c, "cuDNN attention: arguments that it does not support");
  const Rows& rows = c->queries;
  const bool direct = in_place(*c, a);
  const Tensor out = direct ? a.out : ctx.empty({rows.total(), a.q.dim(1), a.q.dim(2)}, DType::bf16);
  const Tensor lse = direct ? a.lse : ctx.empty({a.q.dim(1), rows.total()});
  run(c->problem,
      {at(a.q, rows).raw(), at(a.k, c->keys).raw(), at(a.v, c->keys).raw(), out.raw(), lse.raw(), nullptr, nullptr,
       nullptr, nullptr},
      ctx);
  if (!direct) merge_rows(out, lse, rows, a, ctx);
}

bool supports_backward(const AttentionBackward& a, const ExecContext& ctx) {
  return plan_of(call_of(a, ctx), ctx) != nullptr;
}

void run_backward(const AttentionBackward& a, const ExecContext& ctx) {
  const std::optional<Call> c = call_of(a, ctx);
  RING_CHECK(c, "cuDNN attention: arguments that it does not support");
  const Problem& p = c->problem;
  const bool direct = in_place(*c, a);
  const bool as_it_is = c->queries.all_of(a.q.dim(0)) && (p.batch == 1 || p.stats_head != p.queries);
  const Tensor lse = as_it_is ? a.lse : lse_by_sequence(a.lse, c->queries, ctx);
  const auto place = [&](const Tensor& t, const Rows& rows) {
    return direct ? t : ctx.empty({rows.total(), t.dim(1), t.dim(2)}, DType::bf16);
  };
  const Tensor dq = place(a.dq, c->queries), dk = place(a.dk, c->keys), dv = place(a.dv, c->keys);
  run(p,
      {at(a.q, c->queries).raw(), at(a.k, c->keys).raw(), at(a.v, c->keys).raw(), at(a.out, c->queries).raw(),
       lse.raw(), at(a.dout, c->queries).raw(), dq.raw(), dk.raw(), dv.raw()},
      ctx);
  if (!direct) add_gradients({dq, dk, dv}, c->queries, c->keys, a, ctx);
}

const bool added[] = {
    attention_kernel.add(Backend::cuda, {"cudnn", run_forward, supports_forward, 20, may_support_forward}),
    attention_backward_kernel.add(Backend::cuda, {"cudnn", run_backward, supports_backward, 20, may_support_backward}),
    add_choice_library("cudnn", library_text),
};

}  // namespace
}  // namespace ring::cudnn
