#pragma once
#include <cstdint>

namespace ring {

// What a step's number on the device holds (core/step_state.h), and with it everything that counts steps.
inline constexpr std::int64_t kMostSteps = (std::int64_t{1} << 31) - 1;

}  // namespace ring
