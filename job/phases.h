#pragma once
// Phases of a process.

#include <cstdint>
#include <string_view>

namespace ring {

// Steps and the writing of a checkpoint run concurrently, so a process is in one phase of steps and in one phase of
// writing. On a GPU the phases of steps are the host's, which runs ahead of the device.
enum class RunPhase : std::uint8_t {
  start,
  load,
  data,
  forward,
  backward,
  reduce,
  optimizer,
  finish,  // waiting for the results of the step
  validate,
  snapshot,
  nothing,  // no checkpoint is being written; the first phase of writing
  write,
  sync,
  commit,
  read_back,
  count
};
constexpr bool is_of_writing(RunPhase p) { return p >= RunPhase::nothing; }
std::string_view to_string(RunPhase);

}  // namespace ring
