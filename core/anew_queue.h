#pragma once
// Where work goes that is queued anew in each step (core/queue_anew.h).

#include <functional>

#include "core/stream.h"

namespace ring {

class StepArena;

// Each stream has one (StreamImpl::resource).
struct AnewQueue {
  explicit AnewQueue(StreamImpl&) {}
  std::function<void(std::function<void()> work)> in_launches;  // set by the stream while it is recorded
  StepArena* arena = nullptr;                                   // that of the steps on the stream; null: there are none
};

}  // namespace ring
