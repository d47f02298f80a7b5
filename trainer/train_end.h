#pragma once

#include "trainer/metrics.h"

namespace ring {

// Reasons for which a run's process may end without an error.
enum class TrainEnd { finished, interrupted, out_of_time };

// Returns the value that is recorded in metrics.jsonl.
constexpr const char* name_of(TrainEnd end) {
  switch (end) {
    case TrainEnd::finished: return kEndFinished;
    case TrainEnd::interrupted: return kEndStopped;
    case TrainEnd::out_of_time: return kEndOutOfTime;
  }
  return "";
}

}  // namespace ring
