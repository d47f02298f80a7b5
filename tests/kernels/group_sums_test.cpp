// Sums of rows by group, against plain sums in f64.
#include "kernels/group_sums.h"

#include <gtest/gtest.h>

#include "core/host_tensor.h"
#include "tests/kernels/poison_allocator.h"
#include "tests/op_case.h"

namespace ring::test {
namespace {

struct SumProblem {
  std::int64_t rows, width, groups;
};

// Rows of group -1 and of groups after the last one belong to no sum.
std::vector<std::int32_t> groups_of(const SumProblem& p) {
  std::vector<std::int32_t> groups;
  for (std::int64_t r = 0; r < p.rows; ++r)
    groups.push_back(static_cast<std::int32_t>((r * r + 3 * r) % (p.groups + 2)) - 1);
  return groups;
}

void check(const SumProblem& p, const ExecContext& ctx) {
  const Values x = random_values("x", p.rows * p.width, 4);
  const std::vector<std::int32_t> groups = groups_of(p);
  Values want(static_cast<std::size_t>(p.groups), 0.5);
  for (std::size_t i = 0; i < x.size(); ++i) {
    const std::int32_t g = groups[i / static_cast<std::size_t>(p.width)];
    if (g >= 0 && g < p.groups) want[static_cast<std::size_t>(g)] += static_cast<double>(static_cast<float>(x[i]));
  }
  const auto run = [&] {
    const Tensor out = make_tensor({p.groups}, DType::f32, Values(want.size(), 0.5), ctx);
    const Tensor rows = from_host(groups, ctx.stream);
    group_sums_kernel({make_tensor({p.rows * p.width}, DType::f32, x, ctx), rows, out}, ctx);
    return to_host<float>(out, ctx.stream);
  };
  const std::vector<float> got = run();
  for (std::size_t g = 0; g < want.size(); ++g)
    EXPECT_NEAR(got[g], want[g], 1e-6 * (1 + std::abs(want[g]))) << "group " << g;
  EXPECT_EQ(run(), got) << "another time, other bits";
}

constexpr SumProblem kProblems[] = {{1, 1, 1}, {3, 5, 2}, {8, 1000, 3}, {7, 4097, 5}, {64, 333, 20}, {2, 100000, 1}};

TEST(GroupSums, AgreesWithAPlainSumForAnyThreads) {
  for (const int threads : {1, 3})
    for (const SumProblem& p : kProblems) {
      SCOPED_TRACE(str(p.rows, " rows of ", p.width, ", ", p.groups, " groups"));
      check(p, poisoned_context(threads));
    }
}

TEST(GroupSums, WrongShapesAreRefused) {
  const ExecContext ctx{Stream::cpu(1)};
  const Tensor groups = from_host(std::vector<std::int32_t>{0, 0, 0}, ctx.stream), out = ctx.zeros({1});
  EXPECT_THROW(group_sums_kernel({ctx.zeros({10}), groups, out}, ctx), Error);
  EXPECT_THROW(group_sums_kernel({ctx.zeros({9}), ctx.zeros({3}), out}, ctx), Error);
}

TEST(GpuGroupSums, AgreesWithAPlainSum) {
  if (!backend_available(Backend::cuda)) GTEST_SKIP() << "no GPU";
  for (const SumProblem& p : kProblems) {
    SCOPED_TRACE(str(p.rows, " rows of ", p.width, ", ", p.groups, " groups"));
    check(p, poisoned_device_context({Backend::cuda, 0}));
  }
}

}  // namespace
}  // namespace ring::test
