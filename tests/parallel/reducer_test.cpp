#include "parallel/reducer.h"

#include <gtest/gtest.h>

#include <cstring>

#include "comm/self.h"
#include "core/philox.h"
#include "tests/comm/ranks.h"

namespace ring {
namespace {

const std::vector<std::int64_t> kSizes = {300, 7, 1, 2000, 64, 64, 5000, 3};

// Parameters of the sizes above in one flat gradient buffer.
struct FlatParameters {
  ExecContext ctx{Stream::cpu(1)};
  Tensor flat;
  std::vector<SlotRange> ranges;

  explicit FlatParameters(const std::vector<std::int64_t>& sizes = kSizes, std::int64_t gap = 0) {
    std::int64_t total = 0;
    for (const std::int64_t n : sizes) total += n + gap;
    flat = ctx.zeros({total});
    std::int64_t begin = 0;
    for (const std::int64_t n : sizes) {
      auto slot = std::make_shared<GradSlot>();
      slot->grad = flat.narrow(0, begin, n);
      slot->bound = true;
      ranges.push_back({slot, begin, n});
      begin += n + gap;
    }
  }
  void start_step() {
    for (SlotRange& r : ranges) r.slot->written = false;
    for (std::int64_t i = 0; i < flat.numel(); ++i) flat.data<float>()[i] = 1e30f;  // leftovers that must not be read
  }
};

float gradient(int rank, int micro, std::size_t parameter, std::int64_t i) {
  const auto site = static_cast<std::uint32_t>(parameter * 8 + static_cast<std::size_t>(micro));
  return random_normal({3, static_cast<std::uint32_t>(rank), site}, static_cast<std::uint64_t>(i));
}

struct Inputs {
  SlotPtr last, parameter;
};

// Records one step on the tape that uses a parameter.
void use(Tape& tape, FlatParameters& p, std::size_t k, int rank, int micro, std::vector<SlotPtr>& outputs) {
  const Run run{.ctx = p.ctx, .tape = &tape};
  const Inputs inputs{outputs.empty() ? nullptr : outputs.back(), p.ranges[k].slot};
  const auto rule = [rank, micro, k](const Backward& back, const Inputs& in) {
    back.accumulate(in.last, back.grad());
    const Sink s = back.sink(in.parameter, in.parameter->grad.shape(), DType::f32);
    float* dst = s.dst.data<float>();
    for (std::int64_t i = 0; i < s.dst.numel(); ++i) dst[i] = (s.beta != 0 ? dst[i] : 0) + gradient(rank, micro, k, i);
  };
  outputs.push_back(run.record("use", {}, inputs, rule).slot);
}

// Uses the parameters in registration order, like a forward, except `unused`.
void micro_batch(FlatParameters& p, int rank, int micro, bool last, std::size_t unused) {
  Tape tape(last);
  std::vector<SlotPtr> outputs;
  for (std::size_t k = 0; k < p.ranges.size(); ++k)
    if (k != unused) use(tape, p, k, rank, micro, outputs);
  const Tensor seed = p.ctx.zeros({1});
  tape.backward(outputs.back(), seed, p.ctx);
}

class DistReducer : public testing::TestWithParam<int> {
 protected:
  void SetUp() override {
    if (!gloo_available()) GTEST_SKIP() << "this build has no Gloo";
  }
};
INSTANTIATE_TEST_SUITE_P(Ranks, DistReducer, testing::Values(1, 2, 4));

TEST_P(DistReducer, GradientsAreTheSumOverRanksAndMicroBatches) {
  constexpr int kMicro = 3;
  constexpr std::size_t kUnused = 4;
  const auto errors = test::run_ranks(GetParam(), [](Communicator& c) {
    FlatParameters p;
    Reducer reducer(c, p.ctx.stream, make_buckets(p.flat, p.ranges, 4096));
    RING_CHECK(reducer.buckets() > 3, "too few buckets for this test: ", reducer.buckets());
    for (int step = 0; step < 2; ++step) {
      p.start_step();
      for (int m = 0; m < kMicro; ++m) {
        RING_CHECK(reducer.started() == 0, "reduced before the last micro-batch");
        micro_batch(p, c.rank(), m, m + 1 == kMicro, kUnused);
      }
      // The bucket of the unused parameter delays all later ones until finish().
      RING_CHECK(reducer.started() > 0 && reducer.started() < reducer.buckets(), "started ", reducer.started());
      const int started = reducer.started();
      reducer.finish();
      RING_CHECK(reducer.overlapped() == started && reducer.started() == 0, "overlapped ", reducer.overlapped());
      for (std::size_t k = 0; k < p.ranges.size(); ++k)
        for (std::int64_t i = 0; i < p.ranges[k].numel; ++i) {
          double want = 0, magnitude = 0;
          for (int r = 0; r < c.size() && k != kUnused; ++r)
            for (int m = 0; m < kMicro; ++m) {
              want += gradient(r, m, k, i);
              magnitude += std::abs(gradient(r, m, k, i));
            }
          const float got = p.ranges[k].slot->grad.data<float>()[i];
          RING_CHECK(std::abs(got - want) <= 1e-6 * magnitude, "parameter ", k, " element ", i, ": ", got, " vs ",
                     want);
        }
    }
  });
  EXPECT_EQ(test::joined(errors), "");
}

TEST_P(DistReducer, AllBucketsStartDuringBackwardAndTheirSizeDoesNotChangeBits) {
  const auto errors = test::run_ranks(GetParam(), [](Communicator& c) {
    std::vector<FlatParameters> runs;
    for (const std::int64_t bytes : {64, 4096, 1 << 20}) {
      FlatParameters& p = runs.emplace_back();
      Reducer reducer(c, p.ctx.stream, make_buckets(p.flat, p.ranges, bytes));
      p.start_step();
      micro_batch(p, c.rank(), 0, true, kSizes.size());
      RING_CHECK(reducer.started() == reducer.buckets(), "started ", reducer.started(), " of ", reducer.buckets());
      reducer.finish();
      RING_CHECK(std::memcmp(p.flat.raw(), runs[0].flat.raw(), p.flat.bytes()) == 0, "bits differ for ", bytes);
    }
  });
  EXPECT_EQ(test::joined(errors), "");
}

// Parameters complete in a different order on each rank, but all ranks reduce in one order.
TEST_P(DistReducer, EveryRankReducesInTheSameOrder) {
  CommOptions verify;
  verify.verify = true;
  const auto errors = test::run_ranks(
      GetParam(),
      [](Communicator& c) {
        FlatParameters p({10, 20, 30, 40});
        Reducer reducer(c, p.ctx.stream, make_buckets(p.flat, p.ranges, 4));
        p.start_step();
        Tape tape;
        std::vector<SlotPtr> outputs;
        for (std::size_t k = 0; k < 4; ++k)
          use(tape, p, (k + static_cast<std::size_t>(c.rank())) % 4, c.rank(), 0, outputs);
        tape.backward(outputs.back(), p.ctx.zeros({1}), p.ctx);
        reducer.finish();
        float want = 0;
        for (int r = 0; r < c.size(); ++r) want += gradient(r, 0, 2, 5);
        RING_CHECK(std::abs(p.ranges[2].slot->grad.data<float>()[5] - want) < 1e-5f, "wrong sum");
      },
      verify);
  EXPECT_EQ(test::joined(errors), "");
}

TEST_P(DistReducer, ALostRankIsAnError) {
  if (GetParam() == 1) GTEST_SKIP();
  CommOptions options;
  options.timeout = Timeout(500);
  const auto errors = test::run_ranks(
      GetParam(),
      [](Communicator& c) {
        if (c.rank() == 1) return;  // the rank is lost
        FlatParameters p;
        Reducer reducer(c, p.ctx.stream, make_buckets(p.flat, p.ranges, 4096));
        p.start_step();
        micro_batch(p, c.rank(), 0, true, kSizes.size());
        reducer.finish();
      },
      options);
  for (int r = 0; r < GetParam(); ++r) {
    const bool failed = errors[static_cast<std::size_t>(r)].find("all_reduce") != std::string::npos;
    EXPECT_EQ(failed, r != 1) << "rank " << r << ": " << errors[static_cast<std::size_t>(r)];
  }
}

TEST(Reducer, OneRankSendsNothingButZeroesUnusedParameters) {
  const auto comm = make_self_communicator();
  FlatParameters p;
  Reducer reducer(*comm, p.ctx.stream, make_buckets(p.flat, p.ranges));
  p.start_step();
  micro_batch(p, 0, 0, true, 3);
  reducer.finish();
  for (std::int64_t i = 0; i < kSizes[3]; ++i) ASSERT_EQ(p.ranges[3].slot->grad.data<float>()[i], 0.0f);
  EXPECT_EQ(p.ranges[0].slot->grad.data<float>()[1], gradient(0, 0, 0, 1));
  EXPECT_TRUE(p.ranges[3].slot->written);
}

TEST(Reducer, AParameterWithAnUnusedOutputHasAZeroGradient) {
  const auto comm = make_self_communicator();
  FlatParameters p({4, 4});
  Reducer reducer(*comm, p.ctx.stream, make_buckets(p.flat, p.ranges));
  p.start_step();
  Tape tape;
  std::vector<SlotPtr> main, aside;
  use(tape, p, 0, 0, 0, main);
  use(tape, p, 1, 0, 0, aside);  // nothing reads this output
  tape.backward(main.back(), p.ctx.zeros({1}), p.ctx);
  reducer.finish();
  EXPECT_EQ(p.ranges[1].slot->grad.data<float>()[2], 0.0f);
  EXPECT_EQ(p.ranges[0].slot->grad.data<float>()[2], gradient(0, 0, 0, 2));
}

TEST(Reducer, TwoFinalPassesInOneStepAreRefused) {
  const auto comm = make_self_communicator();
  FlatParameters p;
  Reducer reducer(*comm, p.ctx.stream, make_buckets(p.flat, p.ranges));
  p.start_step();
  micro_batch(p, 0, 0, true, 0);
  EXPECT_THROW(micro_batch(p, 0, 1, true, 0), Error);
}

TEST(Reducer, ReleasesTheSlotsItOwned) {
  const auto comm = make_self_communicator();
  FlatParameters p;
  {
    const Reducer reducer(*comm, p.ctx.stream, make_buckets(p.flat, p.ranges));
    EXPECT_THROW(Reducer(*comm, p.ctx.stream, make_buckets(p.flat, p.ranges)), Error);
  }
  for (const SlotRange& r : p.ranges) EXPECT_FALSE(r.slot->on_ready);
}

TEST(Buckets, CoverEveryParameterOnceFromTheBack) {
  for (const std::int64_t gap : {0, 5})
    for (const std::int64_t bytes : {4, 1000, 8192, 1 << 20}) {
      FlatParameters p(kSizes, gap);
      const auto buckets = make_buckets(p.flat, p.ranges, bytes);
      std::size_t next = p.ranges.size();
      for (std::size_t b = 0; b < buckets.size(); ++b) {
        const Bucket& bucket = buckets[b];
        ASSERT_FALSE(bucket.slots.empty());
        const std::int64_t limit = b == 0 ? bytes / 4 : bytes;
        const bool fits = static_cast<std::int64_t>(bucket.grad.bytes()) <= limit;
        EXPECT_TRUE(fits || bucket.slots.size() == 1);
        const SlotRange& last = p.ranges[next - 1];
        for (const SlotPtr& slot : bucket.slots) EXPECT_EQ(slot, p.ranges[--next].slot);
        const SlotRange& first = p.ranges[next];
        EXPECT_EQ(bucket.grad.raw(), first.slot->grad.raw());
        EXPECT_EQ(bucket.grad.numel(), last.begin + last.numel - first.begin);
      }
      EXPECT_EQ(next, 0u);
    }
  EXPECT_TRUE(make_buckets(FlatParameters().flat, {}).empty());
}

TEST(Buckets, RefuseRangesThatDoNotFit) {
  FlatParameters p({4, 4});
  const auto refused = [&](auto change) {
    std::vector<SlotRange> ranges = p.ranges;
    change(ranges);
    EXPECT_THROW(make_buckets(p.flat, ranges), Error);
  };
  refused([](auto& r) { std::swap(r[0], r[1]); });
  refused([](auto& r) { r[1].begin = 3; });
  refused([](auto& r) { r[1].numel = 5; });
  refused([](auto& r) { r[1].numel = 0; });
  refused([](auto& r) { r[1].slot = nullptr; });
  refused([](auto& r) { r[1].slot = r[0].slot; });
  refused([](auto& r) { r[1].slot = std::make_shared<GradSlot>(); });
  EXPECT_THROW(make_buckets(p.flat, p.ranges, 0), Error);
  EXPECT_THROW(make_buckets({}, p.ranges), Error);
}

}  // namespace
}  // namespace ring
