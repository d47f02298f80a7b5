// Runs every op case on the CPU.

#include "tests/kernels/op_case_checks.h"
#include "tests/kernels/poison_allocator.h"

namespace ring::test {
namespace {

class OpCases : public testing::TestWithParam<OpCase> {};
INSTANTIATE_TEST_SUITE_P(All, OpCases, testing::ValuesIn(tested_cases()),
                         [](const auto& info) { return full_name(info.param); });

TEST_P(OpCases, ForwardMatchesOracle) { check_forward(GetParam(), poisoned_context, {1, 2, 3}); }
TEST_P(OpCases, GradientsMatchFiniteDifferences) { check_gradients(GetParam(), poisoned_context); }
TEST_P(OpCases, AccumulatesAndRepeats) { check_accumulation(GetParam(), poisoned_context, {1, 3}); }

}  // namespace
}  // namespace ring::test
