// Cross-entropy over sliced columns, and embeddings of slices of a table, against references in f64: on the CPU, and in
// f32 and bf16 on a GPU.

#include "kernels/sliced_cross_entropy.h"

#include <cmath>
#include <limits>

#include "kernels/embedding.h"
#include "tests/kernels/op_case_checks.h"
#include "tests/kernels/poison_allocator.h"
#include "tests/kernels/step_state_tensor.h"

namespace ring::test {
namespace {

constexpr float kSlicedScale = 0.5f, kSlicedZLoss = 1e-3f, kSlicedLossScale = 3.0f;

struct SlicedCase {
  std::int64_t rows, width, parts, vocab;  // width: of a slice
  double spread = 6;
  std::int64_t columns() const { return width * parts; }
};
std::string name_of(const SlicedCase& c) {
  return str(c.rows, " rows, ", c.parts, " slices of ", c.width, ", vocabulary ", c.vocab);
}

struct SlicedValues {
  std::vector<Values> loss;  // loss per slice; all slices compute the same
  Values gradient;           // [rows, columns]
};

Values stored(Values v, DType t) {
  for (double& x : v) x = t == DType::bf16 ? to_float(to_bf16(static_cast<float>(x))) : static_cast<float>(x);
  return v;
}
Values logits_of(const SlicedCase& c, DType t) {
  return stored(random_values("logits", c.rows * c.columns(), c.spread), t);
}
Values weights_of(const SlicedCase& c) {
  Values w = stored(random_values("weights", c.rows), DType::f32);
  for (double& x : w) x = 1 + 0.5 * x;
  return stored(w, DType::f32);
}
// Returns targets in every slice, and ignored ones.
Values targets_of(const SlicedCase& c) {
  const std::int64_t choices[] = {0, c.vocab - 1, kIgnoreTarget, c.vocab / 2, c.vocab / 3};
  Values v;
  for (std::int64_t r = 0; r < c.rows; ++r) v.push_back(static_cast<double>(choices[r % 5]));
  return v;
}

SlicedValues oracle(const SlicedCase& c, DType t) {
  SlicedValues out{{Values(static_cast<std::size_t>(c.rows))}, logits_of(c, t)};
  const Values targets = targets_of(c), weights = weights_of(c);
  for (std::int64_t r = 0; r < c.rows; ++r) {
    double* x = out.gradient.data() + r * c.columns();
    const auto target = static_cast<std::int64_t>(targets[static_cast<std::size_t>(r)]);
    if (target == kIgnoreTarget) {
      std::fill(x, x + c.columns(), 0.0);
      continue;
    }
    double max = x[0], sum = 0;
    for (std::int64_t v = 0; v < c.vocab; ++v) max = std::max(max, x[v]);
    for (std::int64_t v = 0; v < c.vocab; ++v) sum += std::exp(x[v] - max);
    const double lse = max + std::log(sum), weight = weights[static_cast<std::size_t>(r)];
    out.loss[0][static_cast<std::size_t>(r)] = weight * (lse - x[target] + kSlicedZLoss * lse * lse);
    const double scale = weight * kSlicedScale * kSlicedLossScale;
    for (std::int64_t v = 0; v < c.vocab; ++v) x[v] = scale * (1 + 2 * kSlicedZLoss * lse) * std::exp(x[v] - lse);
    x[target] -= scale;
    std::fill(x + c.vocab, x + c.columns(), 0.0);
  }
  return out;
}

// Returns the columns of one slice for all rows.
Values slice_of(const Values& all, std::int64_t columns, std::int64_t first, std::int64_t width) {
  Values v;
  for (std::size_t at = static_cast<std::size_t>(first); at < all.size(); at += static_cast<std::size_t>(columns))
    v.insert(v.end(), all.begin() + static_cast<std::ptrdiff_t>(at),
             all.begin() + static_cast<std::ptrdiff_t>(at) + width);
  return v;
}

SlicedValues run(const SlicedCase& c, DType t, const Values& all_logits, const Values& target_values, bool gradient,
                 const ExecContext& ctx) {
  SlicedValues out{{}, Values(all_logits.size())};
  const Tensor statistics = ctx.empty({c.parts, c.rows, kLogitStatistics});
  const Tensor targets = make_tensor({c.rows}, DType::i32, target_values, ctx);
  std::vector<Tensor> logits;
  for (std::int64_t p = 0; p < c.parts; ++p) {
    logits.push_back(make_tensor({c.rows, c.width}, t, slice_of(all_logits, c.columns(), p * c.width, c.width), ctx));
    const Tensor own = statistics.narrow(0, p, 1).view({c.rows, kLogitStatistics});
    logit_statistics_kernel(
        {.logits = logits.back(), .targets = targets, .out = own, .first = p * c.width, .vocab = c.vocab}, ctx);
  }
  for (std::int64_t p = 0; p < c.parts; ++p) {
    const Tensor& mine = logits[static_cast<std::size_t>(p)];
    const Tensor loss = ctx.empty({c.rows});
    sliced_cross_entropy_kernel({.logits = mine,
                                 .targets = targets,
                                 .weights = make_tensor({c.rows}, DType::f32, weights_of(c), ctx),
                                 .statistics = statistics,
                                 .loss = loss,
                                 .first = p * c.width,
                                 .vocab = c.vocab,
                                 .scale = kSlicedScale,
                                 .z_loss = kSlicedZLoss,
                                 .gradient = gradient,
                                 .state = state_tensor({.loss_scale = kSlicedLossScale}, ctx)},
                                ctx);
    out.loss.push_back(read_values(loss, ctx));
    const Values got = read_values(mine, ctx);
    for (std::int64_t r = 0; r < c.rows; ++r)
      std::copy_n(got.begin() + r * c.width, c.width, out.gradient.begin() + r * c.columns() + p * c.width);
  }
  return out;
}

void check_case(const SlicedCase& c, DType t, const ExecContext& ctx) {
  SCOPED_TRACE(str(name_of(c), ", ", t));
  const Values logits = logits_of(c, t);
  const SlicedValues want = oracle(c, t), got = run(c, t, logits, targets_of(c), true, ctx);
  for (const Values& loss : got.loss) {
    EXPECT_TRUE(close(loss, want.loss[0], 1e-5));
    EXPECT_EQ(loss, got.loss[0]) << "slices disagree";
  }
  EXPECT_TRUE(close(got.gradient, want.gradient, t == DType::bf16 ? 4e-3 : 1e-5));
  EXPECT_EQ(run(c, t, logits, targets_of(c), true, ctx).gradient, got.gradient) << "another time, other bits";
  const SlicedValues alone = run(c, t, logits, targets_of(c), false, ctx);
  EXPECT_EQ(alone.loss, got.loss);
  EXPECT_EQ(alone.gradient, logits) << "logits written without being asked for";
}

// A slice that is only padding, a slice that contains the vocabulary's end, odd widths.
const SlicedCase kCases[] = {{5, 4, 1, 4},       {6, 37, 2, 74},     {7, 64, 2, 100},    {6, 16, 4, 30},
                             {7, 1000, 3, 2999}, {5, 4001, 2, 8001}, {10, 8, 2, 16, 900}};

void check_bad_numbers(const ExecContext& ctx) {
  const float inf = std::numeric_limits<float>::infinity();
  const Values bad{1, 2, std::nan(""), 4, 5, 6, 7, 8, 3e38, 0, -3e38, 1, -inf, -inf, -inf, -inf};
  const SlicedValues got = run({4, 2, 2, 4}, DType::f32, bad, {0, 3, 0, 1}, true, ctx);
  for (const Values& loss : got.loss) {
    EXPECT_TRUE(std::isnan(loss[0])) << "a NaN in the other slice";
    EXPECT_TRUE(std::isfinite(loss[1]));
    EXPECT_TRUE(std::isnan(loss[3])) << "nothing but -inf";
  }
  for (std::size_t i = 4; i < 12; ++i) EXPECT_TRUE(std::isfinite(got.gradient[i])) << i;
}

// A row of 10 logits in three slices of four, or in one slice of 12. correct: 1 if the target's logit is the largest.
struct Row {
  Values logits;
  double target, correct;
};
const Row kAccuracyRows[] = {
    {{5, 1, 2, 3, 4, -1, 0, 1, 2, 3, 9, 9}, 0, 1},                    // padding does not count
    {{5, 1, 2, 3, 4, -1, 0, 1, 2, 3, 0, 0}, 3, 0},                    // a larger logit in the same slice
    {{5, 1, 2, 3, 4, -1, 0, 1, 2, 8, 0, 0}, 0, 0},                    // a larger logit in another slice
    {{5, 1, 2, 3, 4, -1, 0, 1, 2, 5, 0, 0}, 9, 1},                    // a tie counts as correct
    {{5, 1, 2, 3, 4, -1, 0, 1, 2, 3, 0, 0}, kIgnoreTarget, 0},        // no target
    {{-9, -9, -9, -9, -8, -9, -9, -9, -9, -9, 0, 0}, 4, 1},           // negative logits
    {{7.5, 0, 0, 0, 7.46875, 0, 0, 0, 0, 0, 0, 0}, 4, 0},             // adjacent bf16 values
    {{3e38, 0, 0, 0, -3e38, 0, 0, 0, 0, 0, 0, 0}, 4, 0},              // very different logits
    {{100, 100, 100, 100, 100, 100, 100, 100, 100, 100, 0, 0}, 7, 1}  // all logits are equal
};

Values correct_of(const CrossEntropy& args, const ExecContext& ctx) {
  cross_entropy_kernel(args, ctx);
  return read_values(args.correct, ctx);
}

void check_correct(DType t, bool gradient, const ExecContext& ctx) {
  constexpr std::int64_t n = std::size(kAccuracyRows), parts = 3, width = 4, vocab = 10;
  Values logits, target_values, want;
  for (const Row& row : kAccuracyRows) {
    logits.insert(logits.end(), row.logits.begin(), row.logits.end());
    target_values.push_back(row.target), want.push_back(row.correct);
  }
  const Tensor targets = make_tensor({n}, DType::i32, target_values, ctx);
  EXPECT_EQ(correct_of({.logits = make_tensor({n, parts * width}, t, logits, ctx),
                        .targets = targets,
                        .loss = ctx.empty({n}),
                        .correct = ctx.empty({n}),
                        .vocab = vocab,
                        .gradient = gradient},
                       ctx),
            want);
  const Tensor statistics = ctx.empty({parts, n, kLogitStatistics});
  const auto slice = [&](std::int64_t p) {
    return make_tensor({n, width}, t, slice_of(logits, parts * width, p * width, width), ctx);
  };
  for (std::int64_t p = 0; p < parts; ++p)
    logit_statistics_kernel({.logits = slice(p),
                             .targets = targets,
                             .out = statistics.narrow(0, p, 1).view({n, kLogitStatistics}),
                             .first = p * width,
                             .vocab = vocab},
                            ctx);
  for (std::int64_t p = 0; p < parts; ++p) {
    const Tensor correct = ctx.empty({n});
    sliced_cross_entropy_kernel({.logits = slice(p),
                                 .targets = targets,
                                 .statistics = statistics,
                                 .loss = ctx.empty({n}),
                                 .correct = correct,
                                 .first = p * width,
                                 .vocab = vocab,
                                 .gradient = gradient},
                                ctx);
    EXPECT_EQ(read_values(correct, ctx), want) << "slice " << p;
  }
}

TEST(SlicedCrossEntropy, SaysWhichTargetsAreTheLikeliest) {
  for (const bool gradient : {false, true}) check_correct(DType::f32, gradient, poisoned_context(2));
}

TEST(SlicedCrossEntropy, MatchesTheOracle) {
  for (const SlicedCase& c : kCases)
    for (int threads : {1, 3}) check_case(c, DType::f32, poisoned_context(threads));
}

TEST(SlicedCrossEntropy, NaNAndInfinityAreHandled) { check_bad_numbers(poisoned_context(1)); }

TEST(SlicedCrossEntropy, NamesATargetOutsideOfTheVocabulary) {
  for (double target : {-1.0, 7.0, 8.0}) {
    try {
      run({2, 4, 2, 7}, DType::f32, Values(16, 1.0), {0, target}, true, poisoned_context(1));
      ADD_FAILURE() << "target " << target << " was taken";
    } catch (const Error& e) {
      EXPECT_NE(std::string(e.what()).find(str("target ", target, " at position 1")), std::string::npos) << e.what();
    }
  }
}

// Looks up rows in each slice. Sums over all slices are the rows of the whole table.
void check_embedding(DType t, const ExecContext& ctx) {
  constexpr std::int64_t rows = 12, width = 20, parts = 3, n = 50;
  Values ids;
  for (std::int64_t i = 0; i < n; ++i) ids.push_back(static_cast<double>(i * i % rows));
  const Tensor id = make_tensor({n}, DType::i32, ids, ctx);
  const Values table = stored(random_values("table", rows * width), t), d = stored(random_values("d", n * width), t);
  for (std::int64_t p = 0; p < parts; ++p) {
    const std::int64_t first = p * rows / parts, count = rows / parts;
    const Values own(table.begin() + first * width, table.begin() + (first + count) * width);
    Values want, want_d(own.size());
    for (std::size_t i = 0; i < ids.size(); ++i)
      for (std::int64_t c = 0; c < width; ++c) {
        const std::int64_t row = static_cast<std::int64_t>(ids[i]) - first;
        const bool here = row >= 0 && row < count;
        want.push_back(here ? own[static_cast<std::size_t>(row * width + c)] : 0);
        if (here) want_d[static_cast<std::size_t>(row * width + c)] += d[i * width + static_cast<std::size_t>(c)];
      }
    const Tensor out = ctx.empty({n, width}, t), dtable = ctx.empty({count, width}, t);
    embedding_kernel({id, make_tensor({count, width}, t, own, ctx), out, false, first, rows}, ctx);
    EXPECT_EQ(read_values(out, ctx), want);
    embedding_kernel({id, make_tensor({count, width}, t, own, ctx), out, true, first, rows}, ctx);
    for (double& x : want) x *= 2;
    EXPECT_EQ(read_values(out, ctx), want) << "added to what was there";
    embedding_backward_kernel({id, make_tensor({n, width}, t, d, ctx), dtable, 0, first, rows}, ctx);
    EXPECT_TRUE(close(read_values(dtable, ctx), want_d, t == DType::bf16 ? 4e-3 : 1e-6));
  }
}

TEST(SlicedEmbedding, IdsOfOtherSlicesGiveNothing) {
  for (int threads : {1, 3}) check_embedding(DType::f32, poisoned_context(threads));
}

TEST(SlicedEmbedding, IdsOutsideOfTheWholeTableAreRefused) {
  const ExecContext ctx = poisoned_context(1);
  for (double id : {-1.0, 12.0}) {
    const Tensor ids = make_tensor({2}, DType::i32, {0, id}, ctx);
    EXPECT_THROW(embedding_kernel({ids, ctx.zeros({4, 8}), ctx.empty({2, 8}), false, 4, 12}, ctx), Error) << id;
  }
  const Tensor ids = make_tensor({1}, DType::i32, {0}, ctx);
  EXPECT_THROW(embedding_kernel({ids, ctx.zeros({4, 8}), ctx.empty({1, 8}), false, 9, 12}, ctx), Error);
}

class GpuSliced : public testing::Test {
 protected:
  void SetUp() override {
    if (!backend_available(Backend::cuda)) GTEST_SKIP() << "no GPU";
  }
  static ExecContext gpu() { return poisoned_device_context({Backend::cuda, 0}); }
};

TEST_F(GpuSliced, CrossEntropyMatchesTheOracle) {
  for (DType t : {DType::f32, DType::bf16}) {
    for (const SlicedCase& c : kCases) check_case(c, t, gpu());
    check_case({5, 75968, 2, 151900}, t, gpu());
  }
  check_bad_numbers(gpu());
}

TEST_F(GpuSliced, SaysWhichTargetsAreTheLikeliest) {
  for (const DType t : {DType::f32, DType::bf16})
    for (const bool gradient : {false, true}) check_correct(t, gradient, gpu());
}

TEST_F(GpuSliced, ABadTargetGivesNaN) {
  const SlicedValues got = run({3, 4, 2, 7}, DType::f32, Values(24, 1.0), {0, -1, 7}, true, gpu());
  for (const Values& loss : got.loss) {
    EXPECT_TRUE(std::isfinite(loss[0]));
    EXPECT_TRUE(std::isnan(loss[1]) && std::isnan(loss[2]));
  }
}

TEST_F(GpuSliced, EmbeddingIdsOfOtherSlicesGiveNothing) {
  for (DType t : {DType::f32, DType::bf16}) check_embedding(t, gpu());
}

TEST_F(GpuSliced, EmbeddingIdsOutsideOfTheWholeTableGiveNaN) {
  const ExecContext ctx = gpu();
  const Tensor out = ctx.empty({3, 8}), ids = make_tensor({3}, DType::i32, {0, -1, 12}, ctx);
  embedding_kernel({ids, ctx.zeros({4, 8}), out, false, 4, 12}, ctx);
  const Values got = read_values(out, ctx);
  for (std::size_t i = 0; i < got.size(); ++i) EXPECT_EQ(std::isnan(got[i]), i >= 8) << i;
}

}  // namespace
}  // namespace ring::test
