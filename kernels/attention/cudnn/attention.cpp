// cuDNN's attention as candidates: bf16, sequences of one length, heads of up to 256. Whatever else is asked for, and
// what this cuDNN has no plan for, is left to our own kernels.
#include "kernels/attention/attention.h"

#include <cmath>
#include <optional>

#include "core/cuda/handles.h"
#include "kernels/attention/cudnn/library.h"
#include "kernels/attention/cudnn/plans.h"
#include "kernels/attention/cudnn/stats.h"

namespace ring::cudnn {
namespace {

constexpr std::int64_t kWidestHead = 256;
// Shorter ones are no work for it, and 1 is a special case with defects of its own.
constexpr std::int64_t kShortestForward = 64;
// The backward handles the rest of a tile wrongly where scores are far below zero (NaN; NVIDIA/cudnn-frontend issues
// 160, 1072, pull request 628; pytorch/pytorch issue 196678) and, before 9.15.1, in a replayed CUDA graph (release
// notes of the frontend, 1.16.0). Whole tiles have no rest.
constexpr std::int64_t kBackwardTile = 128;
constexpr std::size_t kAlignment = 16;  // bytes; unchecked by cuDNN, whose results are wrong otherwise

// The length of all documents when they have one, fill all N rows in order and see only themselves; else 0.
std::int64_t common_length(const std::vector<Span>& queries, const std::vector<Span>& keys, std::int64_t tokens) {
  if (queries.empty() || keys != queries) return 0;
  std::int64_t next = 0;
  for (const Span& s : queries) {
    if (s.first != next || s.count != queries[0].count || s.position != s.document) return 0;
    next += s.count;
  }
  return next == tokens ? queries[0].count : 0;
}

// Dense attention, and causal windows without sinks.
bool describe(Problem& p, const Pattern& pattern) {
  p.causal = pattern.causal;
  if (pattern.kind == AttentionKind::window && p.causal && pattern.sinks == 0) {
    p.window = pattern.window < p.length ? pattern.window : 0;
    return true;
  }
  return pattern.is_dense();
}

bool aligned(const Tensor& t) {
  const std::int64_t step = kAlignment / static_cast<std::int64_t>(size_of(DType::bf16));
  return reinterpret_cast<std::uintptr_t>(t.raw()) % kAlignment == 0 && t.stride(0) % step == 0 &&
         t.stride(1) % step == 0;
}

// A view of the shape that the problem says; nothing: cuDNN cannot read it.
std::optional<View> view_of(const Tensor& t, const Problem& p, std::int64_t heads) {
  if (!t.defined() || t.dtype() != DType::bf16 || t.shape() != Shape{p.batch * p.length, heads, p.dim} ||
      t.stride(2) != 1 || !aligned(t))
    return {};
  return View{t.stride(0), t.stride(1)};
}

bool take(View& to, const Tensor& t, const Problem& p, std::int64_t heads) {
  const std::optional<View> view = view_of(t, p, heads);
  to = view.value_or(View{});
  return view.has_value();
}

template <class Args>  // what both directions share
bool describe(Problem& p, const Args& a) {
  if (!a.q.defined() || a.q.shape().size() != 3 || !a.k.defined() || a.k.shape().size() != 3) return false;
  p.length = common_length(a.queries, a.keys, a.q.dim(0));
  if (p.length == 0 || !describe(p, a.pattern)) return false;
  p.batch = static_cast<std::int64_t>(a.queries.size());
  p.heads = a.q.dim(1);
  p.kv_heads = a.k.dim(1);
  p.dim = a.q.dim(2);
  p.scale = a.scale;
  return p.kv_heads > 0 && p.heads % p.kv_heads == 0 && p.dim > 0 && p.dim % 8 == 0 && p.dim <= kWidestHead &&
         std::isfinite(p.scale) && take(p.q, a.q, p, p.heads) && take(p.k, a.k, p, p.kv_heads) &&
         take(p.v, a.v, p, p.kv_heads) && take(p.out, a.out, p, p.heads) && a.lse.defined() &&
         a.lse.dtype() == DType::f32 && a.lse.contiguous() && a.lse.shape() == Shape{p.heads, p.batch * p.length};
}

void strided_stats(Problem& p) {  // our [Hq,N]
  p.stats_sequence = p.batch == 1 ? p.heads * p.length : p.length;
  p.stats_head = p.batch * p.length;
}
void packed_stats(Problem& p) {  // [batch, heads, length]
  p.stats_sequence = p.heads * p.length;
  p.stats_head = p.length;
}

std::optional<Problem> problem_of(const Attention& a) {
  Problem p;
  if (a.carry.defined() || !describe(p, a) || p.length < kShortestForward) return {};
  strided_stats(p);
  return p;
}

// cuDNN's deterministic backward writes all of dS: its workspace grows with the square of the length.
bool too_large(const Problem& p) {
  const double scores = static_cast<double>(p.batch * p.heads) * static_cast<double>(p.length * p.length);
  return p.deterministic && 2 * scores > static_cast<double>(kMostWorkspace);
}

std::optional<Problem> problem_of(const AttentionBackward& a, const Context& ctx) {
  Problem p;
  p.backward = true;
  p.deterministic = ctx.deterministic;
  if (a.carry_dq.defined() || !describe(p, a) || p.length % kBackwardTile != 0 || too_large(p)) return {};
  if (!take(p.dout, a.dout, p, p.heads) || !take(p.dq, a.dq, p, p.heads) || !take(p.dk, a.dk, p, p.kv_heads) ||
      !take(p.dv, a.dv, p, p.kv_heads))
    return {};
  version() >= kStridedStatsInput ? strided_stats(p) : packed_stats(p);
  return p;
}

const Plan* plan_of(const std::optional<Problem>& p, const Context& ctx) {
  return p ? ctx.stream.impl().resource<Plans>().find(*p) : nullptr;
}

void run(const Problem& p, const Operands& operands, const Context& ctx) {
  Plans& plans = ctx.stream.impl().resource<Plans>();
  const Plan* plan = plans.find(p);
  RING_CHECK(plan, "cuDNN attention: no plan for ", p.batch, " x ", p.length, " tokens");
  const cuda::OnDevice on(ctx.stream.device().index);
  const auto bytes = static_cast<std::int64_t>(plan->workspace_bytes());
  const Tensor workspace = ctx.empty({bytes}, DType::u8);
  plan->run(operands, bytes > 0 ? workspace.raw() : nullptr, plans.handle());
}

bool supports_forward(const Attention& a, const Context& ctx) { return plan_of(problem_of(a), ctx) != nullptr; }

void run_forward(const Attention& a, const Context& ctx) {
  const std::optional<Problem> p = problem_of(a);
  RING_CHECK(p, "cuDNN attention: arguments that it does not support");
  run(*p, {a.q.raw(), a.k.raw(), a.v.raw(), a.out.raw(), a.lse.raw(), nullptr, nullptr, nullptr, nullptr}, ctx);
}

bool supports_backward(const AttentionBackward& a, const Context& ctx) {
  return plan_of(problem_of(a, ctx), ctx) != nullptr;
}

void run_backward(const AttentionBackward& a, const Context& ctx) {
  const std::optional<Problem> p = problem_of(a, ctx);
  RING_CHECK(p, "cuDNN attention: arguments that it does not support");
  const bool ours = p->batch == 1 || p->stats_head != p->length;
  const Tensor lse = ours ? a.lse : by_sequence(a.lse, p->batch, ctx);
  run(*p, {a.q.raw(), a.k.raw(), a.v.raw(), a.out.raw(), lse.raw(), a.dout.raw(), a.dq.raw(), a.dk.raw(), a.dv.raw()},
      ctx);
}

const bool added[] = {
    attention_kernel.add(Backend::cuda, {"cudnn", run_forward, supports_forward, 20}),
    attention_backward_kernel.add(Backend::cuda, {"cudnn", run_backward, supports_backward, 20}),
};

}  // namespace
}  // namespace ring::cudnn
