// Runs every op case on a GPU, op by op. An op that lacks a CUDA kernel is reported as skipped, with the slot.

#include <algorithm>
#include <set>

#include "tests/kernels/op_case_checks.h"
#include "tests/kernels/poison_allocator.h"

namespace ring::test {
namespace {

Context gpu_context(int) { return poisoned_device_context({Backend::cuda, 0}); }

std::set<std::string> slots_of(Backend backend) {
  std::set<std::string> slots;
  for (const KernelInfo& k : kernel_registry())
    if (k.backend == backend) slots.emplace(k.slot);
  return slots;
}
std::set<std::string> slots_without_cuda() {
  const std::set<std::string> cpu = slots_of(Backend::cpu), cuda = slots_of(Backend::cuda);
  std::set<std::string> missing;
  std::set_difference(cpu.begin(), cpu.end(), cuda.begin(), cuda.end(), std::inserter(missing, missing.end()));
  return missing;
}

std::set<std::string> tested_ops() {
  std::set<std::string> ops;
  for (const OpCase& c : tested_cases()) ops.insert(c.op);
  return ops;
}

// Runs the check on the op's cases. A slot without any CUDA kernel skips the test, everything else fails it.
template <class Check>
void for_cases(const std::string& op, const Check& check) {
  if (!backend_available(Backend::cuda)) GTEST_SKIP() << "no GPU";
  for (const OpCase& c : tested_cases()) {
    if (c.op != op) continue;
    SCOPED_TRACE(full_name(c));
    try {
      check(c);
    } catch (const Error& e) {
      const std::string what = e.what();
      for (const std::string& slot : slots_without_cuda())
        if (what.starts_with(slot + ": no cuda kernel")) GTEST_SKIP() << "not covered: " << what;
      throw;
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

// Ops whose kernels are there: they must run, and not be skipped because one got lost.
TEST(GpuCoverage, ElementwiseOpsHaveEveryKernel) {
  if (slots_of(Backend::cuda).empty()) GTEST_SKIP() << "this build has no CUDA";
  const std::set<std::string> missing = slots_without_cuda();
  for (const char* slot : {"axpby", "dropout", "rms_norm", "rms_norm_backward", "activate", "activate_backward",
                           "swiglu", "swiglu_backward", "embedding", "rope", "squared_norm", "clip_factor", "adamw"})
    EXPECT_FALSE(missing.contains(slot)) << slot;
}

TEST(GpuCoverage, SlotsWithoutACudaKernelAreReported) {
  if (slots_of(Backend::cuda).empty()) GTEST_SKIP() << "this build has no CUDA";
  std::string list;
  for (const std::string& slot : slots_without_cuda()) list += (list.empty() ? "" : ", ") + slot;
  if (!list.empty()) GTEST_SKIP() << "no CUDA kernel for: " << list;
}

}  // namespace
}  // namespace ring::test
