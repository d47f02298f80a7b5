// Compressed sums against sums in float64: what was applied plus all residuals is the sum of all gradients.
#include "parallel/compressed_sum.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "core/philox.h"
#include "kernels/elementwise.h"
#include "parallel/gradient_sum.h"
#include "tests/comm/ranks.h"
#include "tests/kernels/step_state_tensor.h"

namespace ring::test {
namespace {

constexpr std::int64_t kElements = 5000;  // matrices [0, 3000) and [3100, 4900), which no share begins with
const std::vector<GradientCompressor::Range> kMatrices = {{0, 3000}, {3100, 1800}};
const std::vector<GradientCoding> kCodings = {
    {GradientCode::bf16, 0}, {GradientCode::int8, 0}, {GradientCode::fp8, 0}, {GradientCode::topk, 40}};

float gradient_at(int rank, int step, std::int64_t i) {
  const RandomSite site{11, static_cast<std::uint32_t>(rank), static_cast<std::uint32_t>(step)};
  return static_cast<float>(random_normal(site, static_cast<std::uint64_t>(i)) * (i % 700 == 0 ? 50 : 1));
}

void fill_gradients(const Tensor& buffer, int rank, int step) {
  for (std::int64_t i = 0; i < kElements; ++i) buffer.data<float>()[i] = gradient_at(rank, step, i);
}

// Owners for sums that only they need: unequal, and not in rank order.
std::vector<BufferPiece> owned_pieces(int ranks) {
  std::vector<BufferPiece> pieces;
  for (std::int64_t begin = 0; begin < 4900; begin += 700)
    pieces.push_back({begin, 700, static_cast<int>(begin / 700 * 3 % ranks), begin, begin != 1400});
  return pieces;
}

struct SumSetup {
  int ranks = 4, per_node = 1;
  bool to_all = true;
  GradientCoding coding;
};

// The sums and residuals of all ranks.
struct SumResults {
  std::vector<std::vector<double>> applied;   // by rank and element, summed over the steps
  std::vector<std::vector<float>> residuals;  // by rank
  std::vector<std::vector<float>> last;       // by rank: the buffer after the last step
  std::vector<BufferPiece> pieces;
};

// rejected: a step that is computed but not accepted; -1: none. poisoned: a rank with NaN in that step.
SumResults run_steps(const SumSetup& s, int steps, int rejected = -1, int poisoned = -1) {
  const auto size = static_cast<std::size_t>(s.ranks);
  SumResults out{std::vector<std::vector<double>>(size, std::vector<double>(kElements, 0.0)),
                 std::vector<std::vector<float>>(size),
                 std::vector<std::vector<float>>(size),
                 {}};
  const auto body = [&](int rank, const CompressionRanks& ranks, Communicator& all) {
    const ExecContext ctx{Stream::cpu(1)};
    GradientCompressor compressor(ranks, s.coding, kElements, s.to_all, ctx);
    const auto pieces = s.to_all ? compressor.split(kElements, 0, kMatrices) : owned_pieces(s.ranks);
    if (rank == 0) out.pieces = pieces;
    const Tensor buffer = ctx.zeros({kElements});
    const auto r = static_cast<std::size_t>(rank);
    for (int step = 0; step < steps; ++step) {
      fill_gradients(buffer, rank, step);
      if (step == rejected && rank == poisoned) buffer.data<float>()[1234] = std::nanf("");
      GradientSum(all, ctx, buffer, pieces, {DType::f32, &compressor}).finish(ctx);
      const bool accepted = step != rejected;
      compressor.end_step(state_tensor({.accepted = accepted ? 1u : 0u}, ctx), ctx);
      for (const BufferPiece& p : pieces)
        for (std::int64_t i = p.begin; accepted && (s.to_all || p.owner == rank) && i < p.begin + p.numel; ++i)
          out.applied[r][static_cast<std::size_t>(i)] += buffer.data<float>()[i];
      if (step == rejected && poisoned >= 0) {
        const auto piece = std::ranges::find_if(
            pieces, [](const BufferPiece& p) { return p.begin <= 1234 && 1234 < p.begin + p.numel; });
        RING_CHECK(!std::isfinite(buffer.data<float>()[1234]) || !(s.to_all || piece->owner == rank), "NaN was lost");
      }
    }
    out.residuals[r].assign(compressor.residuals().data<float>(), compressor.residuals().data<float>() + kElements);
    out.last[r].assign(buffer.data<float>(), buffer.data<float>() + kElements);
  };
  std::vector<std::string> errors;
  if (s.per_node == 1)
    errors = run_ranks(s.ranks, [&](Communicator& c) { body(c.rank(), {nullptr, &c}, c); });
  else
    errors = run_ranks_on_nodes(s.ranks, s.per_node, [&](Communicator& c, Communicator& node, Communicator& between) {
      body(c.rank(), {&node, &between}, c);
    });
  EXPECT_EQ(joined(errors), "");
  return out;
}

std::vector<SumSetup> setups() {
  std::vector<SumSetup> all;
  for (const GradientCoding& coding : kCodings)
    for (const bool to_all : {true, false})
      for (const int per_node : {1, 2}) all.push_back({4, per_node, to_all, coding});
  all.push_back({3, 1, true, {GradientCode::int8, 0}});
  all.push_back({3, 1, false, {GradientCode::fp8, 0}});
  return all;
}

std::string name_of_setup(const SumSetup& s) {
  return str("code ", static_cast<int>(s.coding.code), " ranks ", s.ranks, " per node ", s.per_node,
             s.to_all ? " to all" : " to owners");
}

class DistCompressedSum : public testing::Test {
 protected:
  void SetUp() override {
    if (!gloo_available()) GTEST_SKIP() << "this build has no Gloo";
  }
};

TEST_F(DistCompressedSum, AppliedPlusResidualsIsTheSumOfGradients) {
  constexpr int kSteps = 3;
  for (const SumSetup& s : setups()) {
    const SumResults got = run_steps(s, kSteps);
    bool rounded = false;
    for (const BufferPiece& p : got.pieces)
      for (std::int64_t i = p.begin; i < p.begin + p.numel; ++i) {
        const auto at = static_cast<std::size_t>(i);
        double wanted = 0, magnitude = 0, all = got.applied[static_cast<std::size_t>(p.owner)][at];
        for (int r = 0; r < s.ranks; ++r) {
          for (int step = 0; step < kSteps; ++step) {
            wanted += gradient_at(r, step, i);
            magnitude += std::abs(gradient_at(r, step, i));
          }
          const float residual = got.residuals[static_cast<std::size_t>(r)][at];
          all += residual;
          rounded |= residual != 0;
          ASSERT_TRUE(p.compressible || residual == 0) << name_of_setup(s) << " element " << i;
        }
        // Each f32 addition rounds by at most 2^-24 of a partial sum: some ten additions.
        ASSERT_NEAR(all, wanted, 1e-6 * (magnitude + 50)) << name_of_setup(s) << " element " << i;
      }
    EXPECT_TRUE(rounded) << name_of_setup(s);
  }
}

TEST_F(DistCompressedSum, AllRanksGetTheSameBits) {
  for (const SumSetup& s : setups()) {
    if (!s.to_all) continue;
    const SumResults got = run_steps(s, 2);
    for (int r = 1; r < s.ranks; ++r)
      EXPECT_EQ(std::memcmp(got.last[0].data(), got.last[static_cast<std::size_t>(r)].data(), 4 * kElements), 0)
          << name_of_setup(s);
  }
}

// A step that is not accepted, with NaN or without, leaves no trace, and NaN reaches those who need the sum.
TEST_F(DistCompressedSum, ARejectedStepLeavesNoTrace) {
  const GradientCoding int8{GradientCode::int8, 0}, topk{GradientCode::topk, 40};
  for (const SumSetup& s : {SumSetup{4, 1, true, int8}, {4, 2, true, topk}, {3, 1, false, int8}})
    for (const int poisoned : {-1, 1}) {
      const SumResults with = run_steps(s, 2, 1, poisoned), without = run_steps(s, 1);
      EXPECT_EQ(with.residuals, without.residuals) << name_of_setup(s);
    }
}

// A run that resumes with a larger tp loads, on each tp rank, residuals of pieces that are no longer compressed. The
// gradients of these pieces are summed over the tp ranks, so exactly one rank adds the residual, and all clear it.
TEST_F(DistCompressedSum, OneSliceAddsResidualsOfPiecesThatStayExact) {
  for (const bool to_all : {true, false})
    for (const int per_node : {1, 2}) {
      const auto body = [&](bool first_slice, CompressionRanks ranks, Communicator& all) {
        ranks.first_slice = first_slice;
        const ExecContext ctx{Stream::cpu(1)};
        GradientCompressor compressor(ranks, {GradientCode::int8, 0}, kElements, to_all, ctx);
        const auto pieces = to_all ? compressor.split(kElements, 0, kMatrices) : owned_pieces(4);
        for (std::int64_t i = 0; i < kElements; ++i) compressor.residuals().data<float>()[i] = 1;
        compressor.on_residuals_changed(ctx);
        const Tensor buffer = ctx.zeros({kElements});
        GradientSum(all, ctx, buffer, pieces, {DType::f32, &compressor}).finish(ctx);
        compressor.end_step(state_tensor({}, ctx), ctx);
        for (const BufferPiece& p : pieces) {
          const float sum = buffer.data<float>()[p.begin], kept = compressor.residuals().data<float>()[p.offset];
          if (p.compressible) continue;
          RING_CHECK(kept == 0, "element ", p.begin, " keeps ", kept);
          if (to_all || p.owner == all.rank())
            RING_CHECK(sum == (first_slice ? 4 : 0), "element ", p.begin, " has the sum ", sum);
        }
      };
      for (const bool first_slice : {true, false}) {
        const auto errors =
            per_node == 1 ? run_ranks(4,
                                      [&](Communicator& c) {
                                        body(first_slice, {nullptr, &c}, c);
                                      })
                          : run_ranks_on_nodes(4, 2, [&](Communicator& c, Communicator& node, Communicator& between) {
                              body(first_slice, {&node, &between}, c);
                            });
        EXPECT_EQ(joined(errors), "");
      }
    }
}

// The first of two ranks has small gradients of elements that the second owns, next to a large gradient that cancels
// over the ranks. In codes of 8 bits the small ones round to 0. Only with their residuals do they ever arrive.
double distance_after_descent(bool feedback) {
  double distance = -1;
  const auto errors = run_ranks(2, [&](Communicator& c) {
    constexpr std::int64_t n = 256, first = 128;
    const ExecContext ctx{Stream::cpu(1)};
    GradientCompressor compressor({nullptr, &c}, {GradientCode::int8, 0}, n, true, ctx);
    const auto pieces = compressor.split(n, 0, {{0, n}});
    const Tensor weights = ctx.zeros({n}), buffer = ctx.zeros({n});
    for (int step = 0; step < 600; ++step) {
      fill_zero(buffer, ctx.stream);
      float* const g = buffer.data<float>();
      if (c.rank() == 0)
        for (std::int64_t i = first; i < n; ++i) g[i] = weights.data<float>()[i] - 1;  // of (w - 1)^2 / 2
      g[first] += c.rank() == 0 ? 1000.0f : -1000.0f;
      GradientSum(c, ctx, buffer, pieces, {DType::f32, &compressor}).finish(ctx);
      compressor.end_step(state_tensor({}, ctx), ctx);
      if (!feedback) {
        fill_zero(compressor.residuals(), ctx.stream);
        compressor.on_residuals_changed(ctx);
      }
      axpby_kernel({buffer, weights, weights, -0.02f, 1}, ctx);
    }
    if (c.rank() > 0) return;
    distance = 0;
    for (std::int64_t i = first + 1; i < n; ++i)
      distance = std::max(distance, std::abs(double{weights.data<float>()[i]} - 1));
  });
  EXPECT_EQ(joined(errors), "");
  return distance;
}

TEST_F(DistCompressedSum, DescentArrivesOnlyWithResiduals) {
  // With residuals, a weight moves by the rate times a step of the code: 0.02 x 8.
  EXPECT_LT(distance_after_descent(true), 0.35);
  EXPECT_EQ(distance_after_descent(false), 1);
}

// Messages without blocks of zeros: empty, full, and in between, with a last block that is not whole.
TEST_F(DistCompressedSum, SparseMessagesArriveWhole) {
  const auto errors = run_ranks(3, [&](Communicator& c) {
    const ExecContext ctx{Stream::cpu(1)};
    const auto byte = [](int from, int to, std::int64_t i) {
      const bool block_is_sent = (i / 512 + from) % (to + 1) == 0 && from != 2;
      return static_cast<std::uint8_t>(block_is_sent && i % 512 == 500 ? 1 + i % 200 : 0);
    };
    constexpr std::int64_t n = 10 * 512 + 502;
    std::vector<Transfer> sends, receives;
    for (int peer = 0; peer < 3; ++peer) {
      if (peer == c.rank()) continue;
      sends.push_back({ctx.empty({n}, DType::u8), peer});
      receives.push_back({ctx.empty({n}, DType::u8), peer});
      for (std::int64_t i = 0; i < n; ++i) {
        sends.back().tensor.data<std::uint8_t>()[i] = byte(c.rank(), peer, i);
        receives.back().tensor.data<std::uint8_t>()[i] = 77;
      }
    }
    MessageExchange exchange(c, sends, receives, true, ctx);
    while (exchange.advance(ctx)) {
    }
    for (const Transfer& t : receives)
      for (std::int64_t i = 0; i < n; ++i)
        RING_CHECK(t.tensor.data<std::uint8_t>()[i] == byte(t.peer, c.rank(), i), "byte ", i, " from ", t.peer);
  });
  EXPECT_EQ(joined(errors), "");
}

TEST_F(DistCompressedSum, GradientsMayBeBf16) {
  const auto errors = run_ranks(2, [&](Communicator& c) {
    const ExecContext ctx{Stream::cpu(1)};
    GradientCompressor compressor({nullptr, &c}, {GradientCode::int8, 0}, kElements, true, ctx);
    const auto pieces = compressor.split(kElements, 0, kMatrices);
    const Tensor exact = ctx.zeros({kElements}), buffer = ctx.zeros({kElements}, DType::bf16);
    fill_gradients(exact, c.rank(), 0);
    cast_kernel({exact, buffer}, ctx);
    GradientSum(c, ctx, buffer, pieces, {DType::f32, &compressor}).finish(ctx);
    for (std::int64_t i = 0; i < kElements; ++i) {
      const double wanted = double{gradient_at(0, 0, i)} + gradient_at(1, 0, i);
      // Half a step of int8, on each of two ways, and of bf16: a block's largest value is at most 50 x 5.
      RING_CHECK(std::abs(to_float(buffer.data<bf16>()[i]) - wanted) < 4.5, "element ", i);
    }
  });
  EXPECT_EQ(joined(errors), "");
}

}  // namespace
}  // namespace ring::test
