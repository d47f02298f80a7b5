#pragma once

namespace ring::test {

// Kernels of a GPU follow from a rule, so that ranks and runs that are compared use the same.
inline constexpr const char* kTuning = "run.tuning=rule";

}  // namespace ring::test
