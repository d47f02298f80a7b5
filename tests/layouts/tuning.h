#pragma once

namespace ring::test {

// Chooses GPU kernels by a rule, so that compared ranks and runs use the same kernels.
inline constexpr const char* kTuning = "run.tuning=rule";

}  // namespace ring::test
