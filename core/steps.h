#pragma once
#include <cstdint>

namespace ring {

// Maximum number of steps: the step number on the device (core/step_state.h) and all step counters can hold it.
inline constexpr std::int64_t kMaxSteps = (std::int64_t{1} << 31) - 1;

}  // namespace ring
