#pragma once
// Checks for every op case on any device: forward against the fp64 oracle, gradients against central differences of the
// oracle, accumulation into existing gradients, shared slots, and bit-identical repeated runs.

#include <gtest/gtest.h>

#include "tests/op_case.h"

namespace ring::test {

void PrintTo(const OpCase&, std::ostream*);
std::string full_name(const OpCase&);
std::vector<OpCase> tested_cases();  // without cases whose oracle would take seconds

// Compares the L2 error relative to `want`. NaN anywhere makes the comparison fail.
testing::AssertionResult close(const Values& got, const Values& want, double tolerance);

// Creates a context whose memory should be full of NaN. `threads` applies to the CPU only.
using MakeContext = std::function<ExecContext(int threads)>;

void check_forward(const OpCase&, const MakeContext&, const std::vector<int>& thread_counts);
void check_gradients(const OpCase&, const MakeContext&);
void check_accumulation(const OpCase&, const MakeContext&, const std::vector<int>& thread_counts);

}  // namespace ring::test
