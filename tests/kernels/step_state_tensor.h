#pragma once
// Copies a StepState to a device's memory, and back.

#include <cstring>

#include "core/step_state.h"
#include "kernels/kernel.h"

namespace ring::test {

inline Tensor state_tensor(const StepState& s, const ExecContext& ctx) {
  std::vector<std::uint8_t> bytes(sizeof s);
  std::memcpy(bytes.data(), &s, sizeof s);
  return from_host(bytes, ctx.stream);
}
inline StepState read_state(const Tensor& t, const ExecContext& ctx) {
  StepState s;
  std::memcpy(&s, to_host<std::uint8_t>(t, ctx.stream).data(), sizeof s);
  return s;
}

}  // namespace ring::test
