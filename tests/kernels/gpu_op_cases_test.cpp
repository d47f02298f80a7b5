// Runs every op case on a GPU, op by op.

#include <set>

#include "tests/kernels/op_case_checks.h"
#include "tests/kernels/poison_allocator.h"

namespace ring::test {
namespace {

ExecContext gpu_context(int) { return poisoned_device_context({Backend::cuda, 0}); }

std::set<std::string> slots_of(Backend backend) {
  std::set<std::string> slots;
  for (const KernelInfo& k : kernel_registry())
    if (k.backend == backend) slots.emplace(k.slot);
  return slots;
}
std::set<std::string> tested_ops() {
  std::set<std::string> ops;
  for (const OpCase& c : tested_cases()) ops.insert(c.op);
  return ops;
}

// Runs the check on the op's cases in f32 and bf16.
template <class Check>
void for_cases(const std::string& op, const Check& check) {
  if (!backend_available(Backend::cuda)) GTEST_SKIP() << "no GPU";
  for (const OpCase& c : tested_cases()) {
    if (c.op != op) continue;
    for (const OpCase& typed : {c, in_bf16(c)}) {
      if (typed.name != c.name && !c.half) continue;
      SCOPED_TRACE(full_name(typed));
      check(typed);
    }
  }
}

class GpuOpCases : public testing::TestWithParam<std::string> {};
INSTANTIATE_TEST_SUITE_P(All, GpuOpCases, testing::ValuesIn(tested_ops()), [](const auto& info) { return info.param; });

TEST_P(GpuOpCases, ForwardMatchesOracle) {
  for_cases(GetParam(), [](const OpCase& c) { check_forward(c, gpu_context, {1}); });
}
TEST_P(GpuOpCases, GradientsMatchFiniteDifferences) {
  for_cases(GetParam(), [](const OpCase& c) { check_gradients(c, gpu_context); });
}
TEST_P(GpuOpCases, AccumulatesAndRepeats) {
  for_cases(GetParam(), [](const OpCase& c) { check_accumulation(c, gpu_context, {}); });
}

TEST(GpuCoverage, EverySlotHasACudaKernel) {
  const std::set<std::string> cpu = slots_of(Backend::cpu), cuda = slots_of(Backend::cuda);
  if (cuda.empty()) GTEST_SKIP() << "this build has no CUDA";
  for (const std::string& slot : cpu) EXPECT_TRUE(cuda.contains(slot)) << slot;
}

}  // namespace
}  // namespace ring::test
