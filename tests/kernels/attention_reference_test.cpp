// Compares the reference of the attention tests, which works with matrices, with the definition for each single query.

#include <gtest/gtest.h>

#include "tests/kernels/attention_problem.h"
#include "tests/kernels/values.h"

namespace ring::test {
namespace {

// Packs documents of several lengths; the first one starts after the beginning of the tensor.
const std::vector<std::int32_t> kOffsets = offsets_of({70, 1, 0, 200}, 3), kRowStarts = {3, 74};

AttentionProblem problem(const Pattern& pattern, float rate) {
  AttentionProblem p = problem_of(pattern, kOffsets, kRowStarts);
  p.dim = 8;
  p.dropout = {.rate = rate, .first_row = 9, .first_head = 1};
  return p;
}

AttentionResult definition(const AttentionProblem& p, const AttentionInputs& in) {
  const AttentionShape shape{kOffsets, p.heads, p.kv_heads, p.dim, p.scale(), p.pattern, kRowStarts, p.dropout};
  return attention_oracle(shape, in.q, in.k, in.v);
}

std::vector<Pattern> patterns() {
  const BlockRule random{.kind = BlockRuleKind::random, .local = 1, .threshold = random_threshold(0.3), .seed = 7};
  return {dense(),
          dense(false),
          window(30, 5),
          window(20, 7, false),
          dilated({{32, 1}, {128, 4}}, false, 1),
          dilated({{32, 1}, {64, 2}}, true, 0, false),
          scales(),
          chunks(false),
          block_sparse(64, {random, {.local = 1, .every = 3}})};
}

TEST(AttentionReference, MatchesTheDefinition) {
  for (const Pattern& pattern : patterns())
    for (const float rate : {0.0f, 0.3f}) {
      SCOPED_TRACE(str(pattern_key(pattern), ", dropout ", rate));
      const AttentionProblem p = problem(pattern, rate);
      const AttentionInputs in = random_inputs(p, DType::f32);
      const AttentionResults got = reference(p, in);
      const AttentionResult want = definition(p, in);
      EXPECT_LE(distance_of(got.out, want.out), 1e-12 * norm_of(want.out));
      for (std::int64_t h = 0; h < p.heads; ++h)
        for (std::int64_t n = kOffsets.front(); n < p.query_rows; ++n) {
          const auto i = static_cast<std::size_t>(h * p.query_rows + n);
          const bool nothing_seen = std::isinf(want.lse[i]) && got.lse[i] == want.lse[i];
          ASSERT_TRUE(nothing_seen || std::abs(got.lse[i] - want.lse[i]) <= 1e-12) << "lse " << i;
        }
    }
}

// Checks q, k and v along a random direction each: the finite difference of dout * out must match the gradient.
TEST(AttentionReference, GradientsMatchFiniteDifferences) {
  for (const Pattern& pattern : patterns())
    for (const float rate : {0.0f, 0.3f}) {
      SCOPED_TRACE(str(pattern_key(pattern), ", dropout ", rate));
      const AttentionProblem p = problem(pattern, rate);
      const AttentionInputs in = random_inputs(p, DType::f32);
      const AttentionResults got = reference(p, in);
      for (const auto& [values, gradient] : {std::pair{&AttentionInputs::q, &AttentionResults::dq},
                                             {&AttentionInputs::k, &AttentionResults::dk},
                                             {&AttentionInputs::v, &AttentionResults::dv}}) {
        const Values direction = random_values("direction", std::ssize(in.*values));
        constexpr double kStep = 1e-5;
        double difference = 0;
        for (const double sign : {1.0, -1.0}) {
          AttentionInputs moved = in;
          for (std::size_t i = 0; i < direction.size(); ++i) (moved.*values)[i] += sign * kStep * direction[i];
          difference += sign * dot(in.dout, definition(p, moved).out) / (2 * kStep);
        }
        EXPECT_NEAR(dot(got.*gradient, direction), difference, 1e-7 * (1 + std::abs(difference)));
      }
    }
}

}  // namespace
}  // namespace ring::test
