// The ops of tensor parallelism, with threads as ranks, against fp64 sums over all ranks' inputs.

#include <gtest/gtest.h>

#include <cmath>

#include "kernels/cross_entropy.h"
#include "tests/autograd/sliced_world.h"

namespace ring::test {
namespace {

class DistTensorParallelOps : public testing::TestWithParam<int> {
 protected:
  void SetUp() override {
    if (!gloo_available()) GTEST_SKIP() << "this build has no Gloo";
  }
};
INSTANTIATE_TEST_SUITE_P(Ranks, DistTensorParallelOps, testing::Values(1, 2, 3, 4));

constexpr std::int64_t kRows = 24, kWidth = 10;

TEST_P(DistTensorParallelOps, GatheredRowsSumTheirGradients) {
  const auto errors = run_ranks(GetParam(), [](Communicator& comm) {
    World w(comm);
    const Values all = random_values("x", kRows * kWidth);
    const Var x = leaf({kRows / comm.size(), kWidth}, rows_of(all, w.rank, w.size), w.ctx);
    const Var y = all_gather_rows(w.run, x);
    expect_close("value", read_values(y.value), all, 0);
    RING_CHECK(y.slot == x.slot || y.recipe, "the gathered rows are kept for the backward");
    Values sum(all.size());
    for (int r = 0; r < comm.size(); ++r) {
      const Values d = random_values(str("d", r), kRows * kWidth);
      for (std::size_t i = 0; i < d.size(); ++i) sum[i] += d[i];
    }
    const Var root = add(w.run, y, {w.ctx.zeros(y.value.shape()), nullptr});
    const Tensor d =
        make_tensor({kRows, kWidth}, DType::f32, random_values(str("d", comm.rank()), kRows * kWidth), w.ctx);
    w.tape.backward(root.slot, d, w.ctx);
    expect_close("gradient", read_values(x.slot->grad), rows_of(sum, w.rank, w.size), 1e-6);
  });
  EXPECT_EQ(joined(errors), "");
}

TEST_P(DistTensorParallelOps, ScatteredSumsAddBiasAndResidual) {
  if (GetParam() == 1) GTEST_SKIP() << "for several processes";
  const auto errors = run_ranks(GetParam(), [](Communicator& comm) {
    World w(comm);
    const Values bias = random_values("b", kWidth), residual = random_values("r", kRows * kWidth),
                 d = random_values("d", kRows * kWidth);
    Values want = residual;
    for (std::size_t i = 0; i < want.size(); ++i) want[i] += bias[i % kWidth];
    for (int r = 0; r < comm.size(); ++r) {
      const Values x = random_values(str("x", r), kRows * kWidth);
      for (std::size_t i = 0; i < x.size(); ++i) want[i] += x[i];
    }
    const std::int64_t own = kRows / comm.size();
    const Var x = leaf({kRows, kWidth}, random_values(str("x", comm.rank()), kRows * kWidth), w.ctx);
    const Var b = leaf({kWidth}, bias, w.ctx), r = leaf({own, kWidth}, rows_of(residual, w.rank, w.size), w.ctx);
    for (const bool recompute : {false, true}) {
      w.run.saving.recompute = recompute;
      const Var y = reduce_scatter_rows(w.run, x, b, r);
      expect_close("value", read_values(y.value), rows_of(want, w.rank, w.size), 1e-6);
      if (recompute) {
        const Tensor again = Saved(y.recipe).get(w.ctx);
        RING_CHECK(read_values(again) == read_values(y.value), "recomputed, other bits");
        continue;
      }
      const Values own_d = rows_of(d, w.rank, w.size);
      w.tape.backward(y.slot, make_tensor({own, kWidth}, DType::f32, own_d, w.ctx), w.ctx);
      expect_close("dx", read_values(x.slot->grad), d, 0);
      expect_close("dresidual", read_values(r.slot->grad), own_d, 0);
      Values db(kWidth);
      for (std::size_t i = 0; i < own_d.size(); ++i) db[i % kWidth] += own_d[i];
      expect_close("dbias", read_values(b.slot->grad), db, 1e-6);
    }
  });
  EXPECT_EQ(joined(errors), "");
}

TEST_P(DistTensorParallelOps, AnEmbeddingOfASlicedTableGivesTheRowsOfTheWhole) {
  const auto errors = run_ranks(GetParam(), [](Communicator& comm) {
    World w(comm);
    constexpr std::int64_t vocab = 36;
    const Values table = random_values("table", vocab * kWidth), d = random_values("d", kRows * kWidth);
    Values ids, want, want_d(table.size());
    for (std::size_t i = 0; i < kRows; ++i) {
      ids.push_back(static_cast<double>(i * i * 5 % vocab));
      for (std::size_t c = 0; c < kWidth; ++c) {
        const std::size_t at = static_cast<std::size_t>(ids[i]) * kWidth + c;
        want.push_back(table[at]);
        want_d[at] += d[i * kWidth + c];
      }
    }
    const Var t = leaf({vocab / comm.size(), kWidth}, rows_of(table, w.rank, w.size), w.ctx);
    const Var y = vocab_parallel_embedding(w.run, make_tensor({kRows}, DType::i32, ids, w.ctx), t);
    expect_close("value", read_values(y.value), rows_of(want, w.rank, w.size), 0);
    const Values own_d = rows_of(d, w.rank, w.size);
    w.tape.backward(y.slot, make_tensor(y.value.shape(), DType::f32, own_d, w.ctx), w.ctx);
    expect_close("gradient", read_values(t.slot->grad), rows_of(want_d, w.rank, w.size), 1e-6);
  });
  EXPECT_EQ(joined(errors), "");
}

// ------------------------------------------------------------------------------------------------------- loss head

struct HeadCase {
  std::int64_t vocab, rows;  // rows: of the weight, with padding, over all slices
  float z_loss = 0;
  std::int64_t chunk_bytes = 0;
  int ignore_every = 0;
  float soft_cap = 0;
};
constexpr float kScale = 0.25f;

struct HeadValues {
  Values loss, dx, dw;
};

std::int64_t target_of(const HeadCase& c, std::int64_t n) {
  if (c.ignore_every && n % c.ignore_every == 0) return kIgnoreTarget;
  return n * 7 % c.vocab;
}

HeadValues head_oracle(const HeadCase& c, const Values& x, const Values& w, const Values& weights) {
  HeadValues out{Values(kRows), Values(x.size()), Values(w.size())};
  for (std::int64_t n = 0; n < kRows; ++n) {
    const std::int64_t target = target_of(c, n);
    if (target == kIgnoreTarget) continue;
    const auto dot = [&](std::int64_t v) {
      double sum = 0;
      for (std::int64_t k = 0; k < kWidth; ++k)
        sum += x[static_cast<std::size_t>(n * kWidth + k)] * w[static_cast<std::size_t>(v * kWidth + k)];
      return c.soft_cap > 0 ? c.soft_cap * std::tanh(sum / c.soft_cap) : sum;
    };
    const auto slope = [&](std::int64_t v) { return c.soft_cap > 0 ? 1 - std::pow(dot(v) / c.soft_cap, 2) : 1; };
    double total = 0;
    for (std::int64_t v = 0; v < c.vocab; ++v) total += std::exp(dot(v));
    const double lse = std::log(total), weight = weights[static_cast<std::size_t>(n)];
    out.loss[static_cast<std::size_t>(n)] = weight * (lse - dot(target) + c.z_loss * lse * lse);
    for (std::int64_t v = 0; v < c.vocab; ++v) {
      const double p = (std::exp(dot(v) - lse) * (1 + 2 * c.z_loss * lse) - (v == target)) * slope(v);
      for (std::int64_t k = 0; k < kWidth; ++k) {
        out.dx[static_cast<std::size_t>(n * kWidth + k)] +=
            kScale * weight * p * w[static_cast<std::size_t>(v * kWidth + k)];
        out.dw[static_cast<std::size_t>(v * kWidth + k)] +=
            kScale * weight * p * x[static_cast<std::size_t>(n * kWidth + k)];
      }
    }
  }
  return out;
}

void check_head_case(const HeadCase& c, Communicator& comm) {
  World world(comm);
  const Values x = random_values("x", kRows * kWidth), w = random_values("w", c.rows * kWidth);
  Values weights = random_values("weights", kRows), targets;
  for (double& v : weights) v = static_cast<float>(std::abs(v));
  for (std::int64_t n = 0; n < kRows; ++n) targets.push_back(static_cast<double>(target_of(c, n)));
  const HeadValues want = head_oracle(c, x, w, weights);
  const Var own_x = leaf({kRows / comm.size(), kWidth}, rows_of(x, world.rank, world.size), world.ctx);
  const Var own_w = leaf({c.rows / comm.size(), kWidth}, rows_of(w, world.rank, world.size), world.ctx);
  const LossHead head{.targets = make_tensor({kRows}, DType::i32, targets, world.ctx),
                      .weights = make_tensor({kRows}, DType::f32, weights, world.ctx),
                      .vocab = c.vocab,
                      .scale = kScale,
                      .z_loss = c.z_loss,
                      .soft_cap = c.soft_cap,
                      .chunk_bytes = c.chunk_bytes};
  const LossOutput out = cross_entropy_head(world.run, own_x, own_w, head);
  Values sum{0};
  for (double l : want.loss) sum[0] += l;
  expect_close("loss of each token", read_values(out.token_loss), want.loss, 1e-5);
  expect_close("sum", read_values(out.sum.value), sum, 1e-5);
  world.tape.backward(out.sum.slot, {}, world.ctx);
  expect_close("dx", read_values(own_x.slot->grad), rows_of(want.dx, world.rank, world.size), 1e-5);
  expect_close("dw", read_values(own_w.slot->grad), rows_of(want.dw, world.rank, world.size), 1e-5);
  Run inference{.ctx = world.ctx, .layout = {.tp = &comm}};
  RING_CHECK(read_values(cross_entropy_head(inference, own_x, own_w, head).token_loss) == read_values(out.token_loss),
             "without a tape the loss is another");
}

TEST_P(DistTensorParallelOps, ALossHeadOverASlicedVocabularyGivesTheLossOfTheWhole) {
  const auto errors = run_ranks(GetParam(), [](Communicator& comm) {
    const HeadCase cases[] = {{48, 48},         {37, 48, 0.1f},
                              {9, 48, 0, 0, 3}, {47, 48, 0.05f, 5 * 48 * 4, 4},
                              {48, 48, 0, 1},   {37, 48, 0.1f, 0, 3, 2.0f}};
    for (const HeadCase& c : cases) check_head_case(c, comm);
  });
  EXPECT_EQ(joined(errors), "");
}

TEST_P(DistTensorParallelOps, RowsThatDoNotDivideAreRefused) {
  if (GetParam() == 1) GTEST_SKIP() << "for several processes";
  const auto errors = run_ranks(GetParam(), [](Communicator& comm) {
    World w(comm);
    reduce_scatter_rows(w.run, leaf({25, 2}, Values(50), w.ctx));
  });
  for (const std::string& e : errors) EXPECT_NE(e.find("do not divide among"), std::string::npos) << e;
}

}  // namespace
}  // namespace ring::test
