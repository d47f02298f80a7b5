#include "core/host_node.h"

#include <utility>

#include "core/host_node_queue.h"
#include "core/step_arena.h"

namespace ring {

void queue_host_node(const Stream& stream, std::function<void()> work) {
  const HostNodeQueue& to = stream.impl().resource<HostNodeQueue>();
  if (to.in_launches) return to.in_launches(std::move(work));
  RING_CHECK(!stream.impl().recording(),
             "this stream's recordings have no slots for work that must be queued again in each replay");
  if (!to.arena || !to.arena->excludes_host_nodes()) return work();
  const StepPause pause(*to.arena);
  work();
}

}  // namespace ring
