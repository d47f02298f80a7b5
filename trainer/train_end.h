#pragma once

#include "trainer/metrics.h"

namespace ring {

// How a run's process ended, if no error ended it.
enum class TrainEnd { finished, interrupted, out_of_time };

// Returns the name in metrics.jsonl.
constexpr const char* name_of(TrainEnd end) {
  switch (end) {
    case TrainEnd::finished: return kEndFinished;
    case TrainEnd::interrupted: return kEndStopped;
    case TrainEnd::out_of_time: return kEndOutOfTime;
  }
  return "";
}

}  // namespace ring
