#include "job/flight.h"

#include "core/clock.h"

namespace ring {
namespace {

constexpr auto kRelaxed = std::memory_order_relaxed;

void raise_to(std::atomic<std::int64_t>& value, std::int64_t to) {
  std::int64_t before = value.load(kRelaxed);
  while (before < to && !value.compare_exchange_weak(before, to, kRelaxed)) continue;
}

}  // namespace

std::string_view to_string(FlightState s) {
  static constexpr std::array<std::string_view, 5> names = {"none", "queued", "started", "done", "failed"};
  return static_cast<std::size_t>(s) < names.size() ? names[static_cast<std::size_t>(s)] : "unknown";
}

void clear(FlightRing& ring) {
  ring.known = 0;
  for (FlightGroup& g : ring.groups) g.queued = g.started = g.done = 0;
  for (FlightEntry& e : ring.entries) e.sequence = 0;
}

FlightEntry* RecordedOperation::entry() const {
  if (!ring_) return nullptr;
  FlightEntry& e = ring_->entries[FlightRing::slot(sequence_)];
  return e.sequence.load(kRelaxed) == sequence_ ? &e : nullptr;
}

void RecordedOperation::mark_started() const {
  FlightEntry* e = entry();
  if (!e || e->state.load(kRelaxed) != FlightState::queued) return;
  e->started_ns.store(nanoseconds_now(), kRelaxed);
  e->state.store(FlightState::started, kRelaxed);
  if (!e->pairwise) raise_to(ring_->groups[static_cast<std::size_t>(e->group)].started, e->number);
  ring_->changes.fetch_add(1, kRelaxed);
}

void RecordedOperation::mark_ended(bool ok) const {
  FlightEntry* e = entry();
  if (!e) return;
  e->ended_ns.store(nanoseconds_now(), kRelaxed);
  e->state.store(ok ? FlightState::done : FlightState::failed, kRelaxed);
  if (ok && !e->pairwise) raise_to(ring_->groups[static_cast<std::size_t>(e->group)].done, e->number);
  ring_->changes.fetch_add(1, kRelaxed);
}

}  // namespace ring
