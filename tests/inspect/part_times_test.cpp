#include "inspect/part_times.h"
#include "model/scopes.h"

#include <gtest/gtest.h>

namespace ring {
namespace {

// 1 GFLOP takes 1 ms, and 1 MB takes 1 ms.
const DeviceRates kRates{.device = "cpu", .fp32 = {1e12, 1e12, 1e12}, .bytes_per_second = 1e9, .call_seconds = 1e-6};

const ActivationPlan kPlan{{{Recompute::none}, {Recompute::mlp}, {Recompute::mlp}}};

// Two equal steps: three blocks, each with a GEMM of 3 ms and a copy, and 1 ms between them; a backward with a GEMM per
// block, with recomputation within a step of the tape; the optimizer's copy; and a copy outside of all parts.
Profile make_profile() {
  Profile p;
  for (int step = 0; step < 2; ++step) {
    double at = 0.1 * step;
    p.steps.push_back({at, 0.1});
    const auto part = [&](ScopeId scope, int parent, std::string_view op = "") {
      p.parts.push_back({scope, op, parent, {}, {}});
      return static_cast<int>(p.parts.size()) - 1;
    };
    const auto call = [&](std::string_view slot, Cost cost, int in, double seconds) {
      p.calls.push_back({slot, "only", cost, in, {at, seconds}, {}});
      at += seconds;
    };
    for (int block = 0; block < 3; ++block) {
      const int whole = part(block_scope(block), -1), mlp = part(block_scope(block, scopes::mlp), whole);
      const double begin = at;
      call("matmul", {2e9, 100, "f32[1]"}, mlp, 0.003);
      at += 0.001;
      call("copy", {0, 1e6, "f32[2]"}, whole, 0.001);
      p.parts[static_cast<std::size_t>(mlp)].device = {begin, 0.003};
      p.parts[static_cast<std::size_t>(whole)].device = {begin, 0.005};
    }
    const int backward = part({scopes::backward}, -1);
    for (int block = 2; block >= 0; --block) {
      const int whole = part(block_scope(block), backward), op = part({}, whole, "linear");
      call("matmul", {4e9, 100, "f32[1]"}, op, 0.005);
      p.parts[static_cast<std::size_t>(whole)].device = {at - 0.005, 0.005};
    }
    const int update = part({scopes::optimizer}, -1);
    call("adamw", {0, 3e6, "f32[3]"}, update, 0.003);
    p.parts[static_cast<std::size_t>(update)].device = {at - 0.003, 0.003};
    call("copy", {0, 1, "f32[4]"}, -1, 0.001);
  }
  return p;
}

TEST(PartTimes, AreThoseOfOneStepGroupedByPlan) {
  const std::vector<PartTimes> rows = part_times(make_profile(), kPlan, kRates, Precision::fp32);
  ASSERT_EQ(rows.size(), 4u);
  EXPECT_EQ(rows[0].name, "1 block keeps everything");
  EXPECT_EQ(rows[1].name, "2 blocks recompute the MLP");
  EXPECT_EQ(rows[2].name, "optimizer");
  EXPECT_EQ(rows[3].name, "other");
  for (const auto& [row, blocks] : {std::pair{0, 1.0}, {1, 2.0}}) {
    const PartTimes& r = rows[static_cast<std::size_t>(row)];
    EXPECT_NEAR(r.forward.predicted, blocks * 0.003, 1e-9);
    EXPECT_NEAR(r.forward.measured, blocks * 0.004, 1e-9);
    EXPECT_NEAR(r.forward.waiting, blocks * 0.001, 1e-9);
    EXPECT_NEAR(r.backward.predicted, blocks * 0.004, 1e-9);
    EXPECT_NEAR(r.backward.measured, blocks * 0.005, 1e-9);
    EXPECT_NEAR(r.backward.waiting, 0, 1e-9);
  }
  EXPECT_NEAR(rows[2].forward.predicted, 0.003, 1e-9);
  EXPECT_NEAR(rows[3].forward.predicted, 1e-6, 1e-12) << "the shortest kernel";
  EXPECT_EQ(rows[3].forward.waiting, 0);
}

TEST(PartTimes, TheCostOfProfilingIsSubtracted) {
  Profile p = make_profile();
  p.event_seconds = 0.001;
  const std::vector<PartTimes> rows = part_times(p, kPlan, kRates, Precision::fp32);
  EXPECT_NEAR(rows[0].forward.measured, 0.002, 1e-9) << "two kernels";
  EXPECT_NEAR(rows[3].forward.measured, 0, 1e-9);
}

TEST(PartTimes, WithoutStepsTheTableIsEmpty) {
  EXPECT_TRUE(part_times({}, kPlan, kRates, Precision::fp32).empty());
  EXPECT_NE(part_times_table({}, kRates).find("all"), std::string::npos);
}

TEST(PartTimes, TheTableHasErrorsInPercent) {
  const std::string table = part_times_table(part_times(make_profile(), kPlan, kRates, Precision::fp32), kRates);
  EXPECT_NE(
      table.find(
          "1 block keeps everything        3.000      4.000   -25%     1.000      4.000      5.000   -20%     0.000\n"),
      std::string::npos)
      << table;
}

}  // namespace
}  // namespace ring
