#pragma once
// Decides where queue_anew() (core/queue_anew.h) sends its work.

#include <functional>

#include "core/stream.h"

namespace ring {

class StepArena;

// One per stream: StreamImpl::resource<AnewQueue>().
struct AnewQueue {
  explicit AnewQueue(StreamImpl&) {}
  std::function<void(std::function<void()> work)> in_launches;  // set by the stream while it is recorded
  StepArena* arena = nullptr;  // of the steps on the stream; null outside of StepMemory
};

}  // namespace ring
