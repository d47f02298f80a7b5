#include "trainer/benchmark_attention.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <tuple>

#include "kernels/attention/attention.h"

namespace ring {
namespace {

// Operands of one forward and backward.
struct Problem {
  Attention forward;
  AttentionBackward backward;
};

// Heads [first, first + count) of a buffer [N, heads, D], where sequences lie one after the other.
Tensor heads_of(const Tensor& all, std::int64_t first, std::int64_t count) { return all.narrow(1, first, count); }

Problem make_problem(const AttentionGrid& g, std::int64_t dim, std::int64_t length, bool causal, const Context& ctx) {
  const std::int64_t sequences = std::max<std::int64_t>(1, g.tokens / length), rows = sequences * length;
  const std::int64_t q = g.heads, kv = g.kv_heads;
  const DType type = activation_type(ctx.precision);
  const Tensor qkv = random_tensor({rows, q + 2 * kv, dim}, type, ctx, 1),
               dqkv = ctx.empty({rows, q + 2 * kv, dim}, type);
  const Tensor dout = random_tensor({rows, q, dim}, type, ctx, 2);
  Attention f{.q = heads_of(qkv, 0, q),
              .k = heads_of(qkv, q, kv),
              .v = heads_of(qkv, q + kv, kv),
              .out = ctx.empty({rows, q, dim}, type),
              .lse = ctx.empty({q, rows}),
              .offsets = {},
              .scale = 1 / std::sqrt(static_cast<float>(dim)),
              .causal = causal};
  for (std::int64_t b = 0; b <= sequences; ++b) f.offsets.push_back(static_cast<std::int32_t>(b * length));
  AttentionBackward b{.q = f.q,
                      .k = f.k,
                      .v = f.v,
                      .out = f.out,
                      .lse = f.lse,
                      .dout = dout,
                      .dq = heads_of(dqkv, 0, q),
                      .dk = heads_of(dqkv, q, kv),
                      .dv = heads_of(dqkv, q + kv, kv),
                      .offsets = f.offsets,
                      .scale = f.scale,
                      .causal = causal};
  return {std::move(f), std::move(b)};
}

class Bench {
 public:
  Bench(const AttentionGrid& g, const Context& ctx, const std::function<void(const AttentionTiming&)>& report)
      : grid_(g), ctx_(ctx), report_(report) {}

  void run(std::int64_t dim, std::int64_t length, bool causal) {
    const Problem p = make_problem(grid_, dim, length, causal, ctx_);
    AttentionTiming t{.head_dim = dim, .length = length, .causal = causal};
    t.sequences = static_cast<std::int64_t>(p.forward.offsets.size()) - 1;
    measure(attention_kernel, p.forward, t);
    attention_kernel(p.forward, ctx_);  // what the backward reads, whoever of them was measured last
    t.backward = true;
    measure(attention_backward_kernel, p.backward, t);
    if (ctx_.stream.device().backend == Backend::cpu) return;  // where everything is deterministic
    t.deterministic = false;
    measure(attention_backward_kernel, p.backward, t);
  }

 private:
  template <class Args>
  void measure(const Kernel<Args>& slot, const Args& args, AttentionTiming t) {
    Context ctx = ctx_;
    ctx.deterministic = t.deterministic;
    for (const auto& c : slot.candidates(ctx.stream.device().backend)) {
      if (c.supports && !c.supports(args, ctx)) continue;
      t.candidate = c.name;
      t.flops = cost(args).flops;
      double& rate = rates_[{t.candidate, t.backward, t.deterministic, t.causal, t.head_dim}];
      t.expected = rate > 0 ? t.flops / rate : 0;
      t.seconds = 0;
      if (t.expected <= grid_.most_seconds) {
        t.seconds = sustained_seconds(ctx, grid_.seconds, [&] { c.fn(args, ctx); });
        rate = t.flops / t.seconds;
      }
      report_(t);
    }
  }

  const AttentionGrid& grid_;
  Context ctx_;
  const std::function<void(const AttentionTiming&)>& report_;
  std::map<std::tuple<std::string, bool, bool, bool, std::int64_t>, double>
      rates_;  // operations per second, the latest
};

}  // namespace

void check_grid(const AttentionGrid& g) {
  if (g.heads < 1 || g.kv_heads < 1 || g.heads % g.kv_heads)
    fail("--heads: ", g.heads, " heads do not share ", g.kv_heads, " KV heads evenly");
  for (const std::int64_t d : g.head_dims)
    if (d < 8 || d % 8) fail("--head-dim: ", d, " is not a positive multiple of 8");
  for (const std::int64_t s : g.lengths)
    if (s < 1 || s >= std::int64_t{1} << 30) fail("--length: ", s, " is not between 1 and 2^30");
  if (g.tokens < 1 || g.tokens >= std::int64_t{1} << 30) fail("--tokens: ", g.tokens, " is not between 1 and 2^30");
}

void time_attention(const AttentionGrid& g, const Context& ctx,
                    const std::function<void(const AttentionTiming&)>& report) {
  check_grid(g);
  Bench bench(g, ctx, report);
  for (const std::int64_t dim : g.head_dims)
    for (const bool causal : g.causal)
      for (const std::int64_t length : g.lengths) bench.run(dim, length, causal);
}

}  // namespace ring
