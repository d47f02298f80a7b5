// Pools as ranks of context parallelism hold them, on CPUs and GPUs: computed from tokens in several parts, seen by
// parts of documents, with keys beside values. The parts together equal attention over whole documents.

#include "kernels/attention/pools/pool_keys.h"

#include <gtest/gtest.h>

#include <memory>

#include "kernels/row_copy.h"
#include "tests/cases/attention_oracle.h"
#include "tests/kernels/attention_problem.h"
#include "tests/kernels/target.h"

namespace ring::test {
namespace {

class PoolParts : public OnTarget {};
INSTANTIATE_TEST_SUITE_P(Cpu, PoolParts, testing::Values(Target{Backend::cpu, DType::f32, 1e-6}));
INSTANTIATE_TEST_SUITE_P(Gpu, PoolParts,
                         testing::Values(Target{Backend::cuda, DType::f32, 1e-5},
                                         Target{Backend::cuda, DType::bf16, 1e-2}));

constexpr std::int64_t kTokens = 700, kHeads = 4, kKvHeads = 2, kDim = 64;

// Two documents of a row, and cuts that split each in two: within pools, and before the first pool ends.
const std::vector<Span> kDocuments = spans_of({0, 150, 700}, {0});
const std::vector<std::vector<std::int32_t>> kCuts = {{100, 333}, {5, 549}};

// Operands and results of a forward and a backward.
struct PooledCall {
  PooledAttention forward;
  PooledAttentionBackward backward;
  Tensor dpooling;
  const ExecContext& ctx;

  static PooledAttention forward_of(const Pattern& pattern, bool learned, DType type, const ExecContext& ctx) {
    const auto random = [&](const char* name, std::int64_t heads) {
      return make_tensor({kTokens, heads, kDim}, type, random_values(name, kTokens * heads * kDim), ctx);
    };
    PooledAttention a{{.q = random("q", kHeads),
                       .k = random("k", kKvHeads),
                       .v = random("v", kKvHeads),
                       .out = ctx.empty({kTokens, kHeads, kDim}, type),
                       .lse = ctx.empty({kHeads, kTokens}),
                       .queries = kDocuments,
                       .keys = kDocuments,
                       .scale = 0.125f,
                       .pattern = pattern}};
    if (!learned) return a;
    const std::int64_t numel = pool_weights_numel(pattern, kKvHeads, kDim);
    const Tensor pooling = make_tensor({numel}, type, random_values("pooling", numel), ctx);
    a.pools.weights = pool_weights(pooling, pattern, kKvHeads, kDim);
    a.pools.gates = make_tensor({kHeads, kTokens}, DType::f32, random_values("gates", kHeads * kTokens, 2), ctx);
    a.pools.mean_gates = ctx.empty(a.pools.gates.shape());
    return a;
  }

  PooledCall(const Pattern& pattern, bool learned, DType type, const ExecContext& ctx)
      : forward(forward_of(pattern, learned, type, ctx)), ctx(ctx) {
    const Attention& a = forward.pairs;
    AttentionBackward& b = backward.pairs;
    b = {.q = a.q, .k = a.k, .v = a.v, .out = a.out, .lse = a.lse, .dout = {}};
    b.dout = make_tensor(a.out.shape(), type, random_values("dout", kTokens * kHeads * kDim), ctx);
    b.dq = ctx.empty(a.q.shape(), type);
    b.dk = ctx.empty(a.k.shape(), type), b.dv = ctx.empty(a.v.shape(), type);
    b.queries = b.keys = kDocuments;
    b.scale = a.scale, b.pattern = pattern;
    if (!learned) return;
    dpooling = ctx.zeros({pool_weights_numel(pattern, kKvHeads, kDim)});
    const PoolOperands& p = forward.pools;
    backward.pools = {p.weights, pool_weights(dpooling, pattern, kKvHeads, kDim), p.gates, ctx.empty(p.gates.shape())};
  }

  std::vector<std::pair<std::string, Values>> results() const {
    std::vector<std::pair<std::string, Values>> all;
    for (const auto& [name, t] : std::vector<std::pair<std::string, Tensor>>{{"out", forward.pairs.out},
                                                                             {"mean_gates", forward.pools.mean_gates},
                                                                             {"dq", backward.pairs.dq},
                                                                             {"dk", backward.pairs.dk},
                                                                             {"dv", backward.pairs.dv},
                                                                             {"dpooling", dpooling},
                                                                             {"dgates", backward.pools.dgates}})
      if (t.defined()) all.emplace_back(name, read_values(t, ctx));
    return all;
  }
};

// Returns each document's queries before its cut, or after it if `behind`, and the pools that they see.
PoolCall call_of(const std::vector<std::int32_t>& cuts, bool behind, std::int32_t size) {
  PoolCall call;
  const std::vector<Span> pools = pool_spans(kDocuments, size);
  for (std::size_t d = 0; d < kDocuments.size(); ++d) {
    Span q = kDocuments[d], k = pools[d];
    const std::int32_t first = behind ? cuts[d] : 0, end = behind ? q.count : cuts[d];
    q.first += first, q.position += first, q.count = end - first;
    k.count = std::min(k.count, (end - 1) / size);
    if (k.count > 0) call.queries.push_back(q), call.keys.push_back(k);
  }
  return call;
}

// Returns keys and values as heads of one tensor, as they are sent.
std::pair<Tensor, Tensor> side_by_side(const Tensor& keys, const Tensor& values, const ExecContext& ctx) {
  const Tensor both = ctx.empty({keys.dim(0), 2 * kKvHeads, kDim}, keys.dtype());
  const Tensor k = both.narrow(1, 0, kKvHeads), v = both.narrow(1, kKvHeads, kKvHeads);
  copy_rows_kernel({k, keys, {.count = keys.dim(0)}}, ctx);
  copy_rows_kernel({v, values, {.count = keys.dim(0)}}, ctx);
  return {k, v};
}

// Computes the pools of one document after the other, and calls for both parts of the queries.
std::vector<PoolKeys> pools_in_parts(const PoolSource& source, const std::vector<std::int32_t>& cuts,
                                     const ExecContext& ctx) {
  std::vector<PoolKeys> all;
  for (std::size_t i = 0; i < source.sizes.size(); ++i) {
    const std::int32_t size = source.sizes[i];
    const std::vector<Span> spans = pool_spans(kDocuments, size);
    const auto sums = std::make_shared<PoolSums>(source, i, spans.back().first + spans.back().count, ctx);
    std::vector<PoolTokens> parts;
    for (const PoolSegment& rows : pooled_rows(kDocuments, size))
      parts.push_back({source.k, source.v, source.scored, {rows}});
    for (const PoolTokens& part : parts) sums->compute_pools(part);
    const auto [keys, values] = side_by_side(sums->keys, sums->values, ctx);
    all.push_back({size,
                   keys,
                   values,
                   {call_of(cuts, false, size), call_of(cuts, true, size)},
                   [=](const Tensor& gradients, const Tensor& dk, const Tensor& dv) {
                     for (const PoolTokens& part : parts) sums->backward(part, gradients, dk, dv);
                     sums->reduce_weight_gradients();
                   }});
  }
  return all;
}

void run_in_parts(PooledCall& c, const std::vector<std::int32_t>& cuts) {
  PooledAttention call = c.forward;
  const Tensor pooled_lse = attend_to_pools(call, pools_in_parts(pool_source(c.forward), cuts, c.ctx), c.ctx);
  attention_kernel(call.pairs, c.ctx);
  write_mean_gates(c.forward, pooled_lse, c.ctx);
  PooledAttentionBackward back = c.backward;
  attend_to_pools(back, pools_in_parts(pool_source(c.backward), cuts, c.ctx), c.ctx);
  attention_backward_kernel(back.pairs, c.ctx);
}

TEST_P(PoolParts, AreAttentionOverWholeDocuments) {
  for (const bool learned : {false, true})
    for (const std::vector<std::int32_t>& sizes : {std::vector<std::int32_t>{16}, {7, 64}})
      for (const std::vector<std::int32_t>& cuts : kCuts) {
        SCOPED_TRACE(str(learned ? "learned" : "means", ", pools of ", sizes[0], ", cut at ", cuts[0]));
        const ExecContext ctx = context();
        Pattern pattern = window(20);
        pattern.pools = sizes;
        PooledCall whole(pattern, learned, GetParam().dtype, ctx), parts(pattern, learned, GetParam().dtype, ctx);
        pooled_attention(whole.forward, ctx);
        pooled_attention_backward(whole.backward, ctx);
        run_in_parts(parts, cuts);
        const auto want = whole.results(), got = parts.results();
        for (std::size_t i = 0; i < want.size(); ++i)
          EXPECT_LE(distance_of(got[i].second, want[i].second), GetParam().tolerance * norm_of(want[i].second))
              << want[i].first;
      }
}

// Applies to pools of whole documents and to pools of documents that ranks share.
TEST_P(PoolParts, RefusesWhatDoesNotFit) {
  const ExecContext ctx = context();
  Pattern pattern = window(20);
  pattern.pools = {16};
  const PooledCall c(pattern, true, GetParam().dtype, ctx);
  EXPECT_NO_THROW(pool_source(c.forward));
  EXPECT_NO_THROW(pool_source(c.backward));
  PooledAttention weights = c.forward, gates = c.forward, dropped = c.forward;
  weights.pools.weights.push_back(weights.pools.weights[0]);
  gates.pools.gates = gates.pools.gates.narrow(1, 0, kTokens - 1);
  dropped.pairs.dropout.rate = 0.1f;
  for (const PooledAttention& wrong : {weights, gates, dropped}) EXPECT_THROW(pool_source(wrong), Error);
  PooledAttentionBackward unlearned = c.backward, ungated = c.backward;
  unlearned.pools.dweights.clear();
  ungated.pools.dgates = {};
  for (const PooledAttentionBackward& wrong : {unlearned, ungated}) EXPECT_THROW(pool_source(wrong), Error);
}

}  // namespace
}  // namespace ring::test
