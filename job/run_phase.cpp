#include "job/run_phase.h"

#include "core/clock.h"
#include "job/inject.h"
#include "job/worker_status.h"

namespace ring {

void enter(RunPhase p) { enter(p, 0); }

void enter(RunPhase p, std::int64_t step) {
  Injector* const faults = injector.load(std::memory_order_relaxed);
  if (faults) [[unlikely]]
    faults->leave(p);
  WorkerStatus& page = own_status();
  const bool begins = page.phase.load(std::memory_order_relaxed) != p;
  if (begins && p == RunPhase::validate) ++page.validations;
  if (begins && p == RunPhase::snapshot) ++page.saves;
  (is_of_writing(p) ? page.writing : page.phase) = p;
  page.entered_ns.store(nanoseconds_now(), std::memory_order_relaxed);
  page.phases.fetch_add(1, std::memory_order_relaxed);
  if (faults) [[unlikely]]
    faults->enter(p, step);
}

}  // namespace ring
