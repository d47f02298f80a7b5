// Schedules are measured while one rank has less memory than the others.

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <mutex>

#include "core/philox.h"
#include "kernels/tuning.h"
#include "parallel/context/exchange.h"
#include "parallel/context/heads.h"
#include "parallel/context/layout.h"
#include "tests/comm/ranks.h"

namespace ring {
namespace {

// An allocator with at most this many bytes in use.
class LimitedAllocator final : public Allocator {
 public:
  LimitedAllocator(std::shared_ptr<Allocator> upstream, std::size_t most)
      : upstream_(std::move(upstream)), most_(most) {}
  void* allocate(std::size_t bytes) override {
    const std::lock_guard lock(mutex_);
    if (in_use_ + bytes > most_) throw OutOfMemory(str("no ", bytes, " bytes"), "");
    void* p = upstream_->allocate(bytes);
    in_use_ += bytes;
    peak_ = std::max(peak_, in_use_);
    return p;
  }
  void free(void* p, std::size_t bytes) override {
    const std::lock_guard lock(mutex_);
    upstream_->free(p, bytes);
    in_use_ -= bytes;
  }
  MemoryStats stats() const override { return {.in_use = in_use_, .peak = peak_}; }
  void reset_peak() override { peak_ = in_use_; }

 private:
  std::shared_ptr<Allocator> upstream_;
  std::size_t most_, in_use_ = 0, peak_ = 0;
  std::mutex mutex_;
};

constexpr std::int64_t kLength = 512, kMemoryHeads = 8, kMemoryDim = 16;
constexpr int kRanks = 4;

struct Outcome {
  std::string errors;
  std::vector<std::string> chosen;  // text of each rank's tuning record
  std::size_t peak = 0;             // on rank 1
};

using MakeParallel = std::function<std::unique_ptr<ContextParallel>(Communicator&)>;
// Runs one forward pass. Rank 1 has `most` bytes for the pass, and the others have enough.
Outcome forward(const MakeParallel& make, std::size_t most, const Pattern& pattern = {}) {
  Outcome out;
  out.chosen.resize(kRanks);
  CommOptions options;
  options.timeout = Timeout(5000);
  out.errors = test::joined(test::run_ranks(
      kRanks,
      [&](Communicator& comm) {
        ExecContext ctx{Stream::cpu(1)};
        ctx.tuning = std::make_shared<Tuning>("");
        const ContextLayout layout(ContextLayoutKind::zigzag, kLength, kRanks);
        const auto shards = std::make_shared<const ContextShards>(
            layout.shards(comm.rank(), 1, {{0, static_cast<std::int32_t>(kLength), 0, 0}}));
        const auto rows = shards->tokens(comm.rank());
        Attention a;
        for (Tensor* t : {&a.q, &a.k, &a.v, &a.out}) *t = ctx.zeros({rows, kMemoryHeads, kMemoryDim});
        a.lse = ctx.zeros({kMemoryHeads, rows});
        a.scale = 1;
        a.pattern = pattern;
        const auto small = std::make_shared<LimitedAllocator>(ctx.stream.allocator(), most);
        if (comm.rank() == 1) ctx.stream.impl().allocator = small;
        const auto exchange = make(comm);
        exchange->forward({a}, shards, ctx, {});
        if (comm.rank() == 1) {
          out.peak = small->stats().peak;
          ctx.stream.impl().allocator = nullptr;
        }
        out.chosen[static_cast<std::size_t>(comm.rank())] = ctx.tuning->text();
        comm.barrier().synchronize();
      },
      options));
  return out;
}

TEST(DistContextMemory, LongMessagesAreSplitByHeads) {
  if (!gloo_available()) GTEST_SKIP() << "this build has no Gloo";
  constexpr std::int64_t kMessage = 2 * kLength / kRanks * kMemoryHeads * kMemoryDim * 4;
  const auto peak = [](std::int64_t bytes) {
    const Outcome o = forward([=](Communicator& c) { return make_ring(c, {.message_bytes = bytes}); }, 1 << 30);
    EXPECT_EQ(o.errors, "") << bytes;
    return static_cast<double>(o.peak);
  };
  const double whole = peak(kMessage);
  EXPECT_NEAR(peak(kMessage - 1) / whole, 0.5, 0.05);
  EXPECT_NEAR(peak(kMessage / 4) / whole, 0.25, 0.05);
}

TEST(ContextHeads, FitIntoTheLongestMessage) {
  const ContextShards s = ContextLayout(ContextLayoutKind::contiguous, 100, 3).shards(0, 1, {{0, 100, 0, 0}});
  const Pattern dense, window{.branches = {{.window = 8}}};
  const std::int64_t head = 2 * 34 * 16 * 4;  // one of three ranks has 34 of 100 rows
  EXPECT_EQ(heads_at_once(s, dense, 12, 16, 12 * head), 12);
  EXPECT_EQ(heads_at_once(s, dense, 12, 16, 12 * head - 1), 6);
  EXPECT_EQ(heads_at_once(s, dense, 12, 16, 5 * head), 4);
  EXPECT_EQ(heads_at_once(s, dense, 12, 16, 1), 1);
  EXPECT_EQ(heads_at_once(s, window, 12, 16, 1), 12);
}

void expect_tried_by_all_or_none(const Pattern& pattern) {
  const MakeParallel measured = [](Communicator& c) { return make_measured_context(c, {}); };
  constexpr std::size_t kEnough = std::size_t{1} << 30, kSteps = 8;
  const Outcome all = forward(measured, kEnough, pattern);
  const Outcome ring = forward([](Communicator& c) { return make_ring(c, {}); }, kEnough, pattern);
  ASSERT_EQ(all.errors + ring.errors, "");
  ASSERT_GT(all.peak, 2 * ring.peak);
  for (std::size_t i = 0; i <= kSteps; ++i) {
    const Outcome some = forward(measured, ring.peak + (all.peak - ring.peak) * i / kSteps, pattern);
    EXPECT_EQ(some.errors, "") << i;
    for (const std::string& text : some.chosen) EXPECT_EQ(text, some.chosen[0]) << i;
    if (i == 0) {
      EXPECT_NE(some.chosen[0].find("ring"), std::string::npos) << some.chosen[0];
    }
  }
}

TEST(DistContextMemory, SchedulesThatOneRankCannotHoldAreNotTried) {
  if (!gloo_available()) GTEST_SKIP() << "this build has no Gloo";
  expect_tried_by_all_or_none({});
}

TEST(DistContextMemory, SchedulesWithPoolsThatOneRankCannotHoldAreNotTried) {
  if (!gloo_available()) GTEST_SKIP() << "this build has no Gloo";
  expect_tried_by_all_or_none({.pools = {16, 40}});
}

}  // namespace
}  // namespace ring
