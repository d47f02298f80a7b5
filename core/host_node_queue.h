#pragma once
// Decides where queue_host_node() (core/host_node.h) sends its work.

#include <functional>

#include "core/stream.h"

namespace ring {

class StepArena;

// One per stream: StreamImpl::resource<HostNodeQueue>().
struct HostNodeQueue {
  explicit HostNodeQueue(StreamImpl&) {}
  std::function<void(std::function<void()> work)> in_launches;  // set by the stream while it is recorded
  StepArena* arena = nullptr;  // arena of the steps on the stream; null outside of StepMemory
};

}  // namespace ring
