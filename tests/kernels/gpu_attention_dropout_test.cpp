// Dropout on the weights in our own CUDA attention: the mask of every single pair, and results over rows of many tiles
// (attention_family_test.cpp has short rows).

#include "kernels/attention/blocks.h"
#include "tests/kernels/gpu_attention_problem.h"

namespace ring::test {
namespace {

using GpuAttentionDropout = GpuAttention;

constexpr OracleDropout kDropout{.rate = 0.3f, .first_row = 40, .first_head = 3};

// Returns queries of 0, so that all keys of a row have equal weight; keys, values and dout are 0 as well.
AttentionInputs without_scores(const GpuProblem& p) {
  AttentionInputs in = gpu_inputs(p);
  for (Values* v : {&in.q, &in.k, &in.v, &in.dout}) std::ranges::fill(*v, 0.0);
  return in;
}

// Makes rows [first, first + D) of a tensor [N,H,D] unit vectors. The problem is one causal document of p.tokens()
// rows.
void set_units(Values& v, const GpuProblem& p, std::int64_t first) {
  for (std::int64_t i = 0; i < p.dim && first + i < p.tokens(); ++i)
    for (std::int64_t h = 0; h < p.heads; ++h) v[static_cast<std::size_t>(((first + i) * p.heads + h) * p.dim + i)] = 1;
}

// Calls fn(query, head, key, dropped, keys that the query keeps) for the causal pairs whose key, or query if not
// of_keys, is in [first, first + D).
template <class Fn>
void for_pairs(const GpuProblem& p, std::int64_t first, bool of_keys, const Fn& fn) {
  for (std::int64_t n = 0; n < p.tokens(); ++n)
    for (std::int64_t h = 0; h < p.heads; ++h) {
      std::vector<bool> kept;
      for (std::int64_t u = 0; u <= n; ++u) kept.push_back(p.dropout.factor(n, h, static_cast<std::int32_t>(u)) > 0);
      for (std::int64_t u = 0; u <= n; ++u)
        if ((of_keys ? u : n) / p.dim == first / p.dim)
          fn(n, h, u, !kept[static_cast<std::size_t>(u)], std::ranges::count(kept, true));
    }
}

// If values are unit vectors, `out` shows the dropped pairs; if douts are, dv does.
TEST_F(GpuAttentionDropout, EveryWeightHasItsMask) {
  for (const std::int64_t dim : {64, 128, 256}) {
    const GpuProblem p{.offsets = {0, 650}, .heads = 2, .kv_heads = 2, .dim = dim, .dropout = kDropout};
    for (std::int64_t first = 0; first < p.tokens(); first += dim) {
      AttentionInputs in = without_scores(p);
      set_units(in.v, p, first);
      set_units(in.dout, p, first);
      for (const std::string& name : own_candidates(p)) {
        SCOPED_TRACE(str(name, ": ", text(p), ", from ", first));
        const AttentionResults got = run_gpu(name, p, in);
        std::int64_t wrong = 0;
        const auto at = [&](const Values& v, std::int64_t n, std::int64_t h, std::int64_t i) {
          return v[static_cast<std::size_t>((n * p.heads + h) * p.dim + i - first)];
        };
        for_pairs(p, first, true, [&](std::int64_t n, std::int64_t h, std::int64_t u, bool dropped, std::int64_t) {
          wrong += (at(got.out, n, h, u) == 0) != dropped;
        });
        for_pairs(p, first, false, [&](std::int64_t n, std::int64_t h, std::int64_t u, bool dropped, std::int64_t) {
          wrong += (at(got.dv, u, h, n) == 0) != dropped;
        });
        EXPECT_EQ(wrong, 0);
      }
    }
  }
}

// If all values and douts are 1, dS of a pair is P (D mask / (1 - rate) - delta): negative exactly if the pair is
// dropped. Keys that are unit vectors show this sign in dq.
TEST_F(GpuAttentionDropout, EveryScoreGradientHasItsMask) {
  for (const std::int64_t dim : {64, 128, 256}) {
    const GpuProblem p{.offsets = {0, 650}, .heads = 2, .kv_heads = 2, .dim = dim, .dropout = kDropout};
    const double scale = p.problem().scale(), most = static_cast<double>(dim) / (1 - 0.3);
    for (std::int64_t first = 0; first < p.tokens(); first += dim) {
      AttentionInputs in = without_scores(p);
      set_units(in.k, p, first);
      for (Values* v : {&in.v, &in.dout}) std::ranges::fill(*v, 1.0);
      for (const std::string& name : own_candidates(p)) {
        SCOPED_TRACE(str(name, ": ", text(p), ", from ", first));
        const Values dq = run_gpu(name, p, in).dq;
        std::int64_t wrong = 0;
        for_pairs(p, first, true, [&](std::int64_t n, std::int64_t h, std::int64_t u, bool dropped, std::int64_t kept) {
          const double weight = 1 / static_cast<double>(n + 1), delta = most * weight * static_cast<double>(kept);
          const double got = dq[static_cast<std::size_t>((n * p.heads + h) * p.dim + u - first)];
          wrong += kept > 0 && (got < -delta * weight * scale / 2) != dropped;
        });
        EXPECT_EQ(wrong, 0);
      }
    }
  }
}

BlockRule random_rule(double density) {
  return {.kind = BlockRuleKind::random, .local = 1, .threshold = random_threshold(density), .seed = 7};
}

// Runs every kernel: intervals in one and two ranges, lists, split lists and branches; rounded, in f32, merged, in any
// order. Rates divide the rows of all parts: own_sm90 requires it.
TEST_F(GpuAttentionDropout, RowsOfManyTiles) {
  const Pattern first_block = block_sparse(64, {{.kind = BlockRuleKind::local_global, .local = 1, .first = 1}});
  for (const std::int64_t dim : {64, 128, 256})
    for (const Pattern& pattern :
         {dense(), dense(false), window(300), window(200, 70), dilated({{500, 1}, {1300, 2}}, false, 1),
          dilated({{256, 1}, {1024, 4}}, true, 3), block_sparse(128, {random_rule(0.3)}), first_block}) {
      GpuProblem p{.offsets = offsets_of({130, 1100, 300}), .heads = 4, .kv_heads = 2, .dim = dim, .pattern = pattern};
      p.after = 6, p.dropout = kDropout;
      const AttentionInputs in = gpu_inputs(p);
      const AttentionResults want = reference(p.problem(), in);
      for (const bool deterministic : {true, false}) {
        p.deterministic = deterministic, p.wide = false;
        for (const std::string& name : on_tensor_cores(p))
          for (const bool wide : {false, true}) {
            p.wide = wide;
            SCOPED_TRACE(str(name, ": ", text(p)));
            const AttentionResults got = run_gpu(name, p, in);
            expect_close(p, got, want);
            EXPECT_TRUE(!deterministic || run_gpu(name, p, in) == got);
            if (wide) expect_close(p, run_gpu_in_parts(name, p, in, p.tokens() / 2, p.tokens() / 3), want);
          }
      }
    }
}

// The Hopper kernels accept dropout for every call that they accept without dropout.
TEST_F(GpuAttentionDropout, HasTheKernelsOfCallsWithout) {
  for (const std::int64_t dim : {8, 64, 72, 128, 256}) {
    GpuProblem p{.offsets = {0, 128}, .heads = 2, .kv_heads = 1, .dim = dim};
    const std::vector<std::string> without = own_candidates(p);
    p.dropout = kDropout;
    EXPECT_EQ(own_candidates(p), without) << text(p);
  }
}

}  // namespace
}  // namespace ring::test
