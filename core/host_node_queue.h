#pragma once
// Tells queue_host_node() (core/host_node.h) how the stream is recorded and where its steps allocate.

#include <functional>

#include "core/stream.h"

namespace ring {

class StepArena;

// Each stream has one: StreamImpl::resource<HostNodeQueue>().
struct HostNodeQueue {
  explicit HostNodeQueue(StreamImpl&) {}
  // Keeps a place for `work` in each launch of the recording. It is null unless the stream is being recorded.
  std::function<void(std::function<void()> work)> in_launches;
  StepArena* arena = nullptr;  // arena of the steps on the stream; null outside of StepMemory
};

}  // namespace ring
