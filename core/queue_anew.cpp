#include "core/queue_anew.h"

#include <utility>

#include "core/anew_queue.h"
#include "core/step_arena.h"

namespace ring {

void queue_anew(const Stream& stream, std::function<void()> work) {
  const AnewQueue& to = stream.impl().resource<AnewQueue>();
  if (to.in_launches) return to.in_launches(std::move(work));
  RING_CHECK(!stream.impl().recording(),
             "this stream's recordings have no slots for work that must be queued again in each replay");
  if (!to.arena || !to.arena->sets_apart()) return work();
  const StepPause pause(*to.arena);
  work();
}

}  // namespace ring
