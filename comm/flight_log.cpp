#include "comm/flight_log.h"

#include <algorithm>
#include <charconv>
#include <thread>

#include "core/clock.h"

namespace ring {
namespace {

constexpr auto kRelaxed = std::memory_order_relaxed;

// Writes the same text as to_string(Site), without an allocation.
void put_site(std::array<char, 48>& to, const Site& site) {
  std::string_view path = site.file_name();
  const std::size_t name = path.rfind('/');
  const std::size_t folder = name == path.npos || name == 0 ? path.npos : path.rfind('/', name - 1);
  if (folder != path.npos) path.remove_prefix(folder + 1);
  copy_text(to, path.substr(0, to.size() - 12));
  char* end = to.data() + std::min(path.size(), to.size() - 12);
  *end++ = ':';
  *std::to_chars(end, to.data() + to.size() - 1, site.line()).ptr = '\0';
}

// Claims an entry for writing. Waits for the entry's previous writer, which may still be writing if other writers have
// filled the whole ring in the meantime.
void claim(FlightEntry& e) {
  while (e.sequence.exchange(FlightEntry::kBeingWritten, std::memory_order_acquire) == FlightEntry::kBeingWritten)
    std::this_thread::yield();
}

}  // namespace

FlightLog::FlightLog(FlightRing& ring, std::string_view name, int first_rank, int size) {
  const int at = ring.known.fetch_add(1);
  if (at >= FlightRing::kGroups) return;
  ring_ = &ring;
  group_ = &ring.groups[static_cast<std::size_t>(at)];
  copy_text(group_->name, name);
  group_->first_rank = first_rank;
  group_->size = size;
}

void FlightLog::rename(std::string_view name) {
  if (group_) copy_text(group_->name, name);
}

RecordedOperation FlightLog::record_queued(const Operation& op) {
  if (!ring_) return {};
  const bool pairwise = op.kind == Operation::Kind::pairwise;
  const std::int64_t sequence = ring_->queued.fetch_add(1, kRelaxed) + 1;
  FlightEntry& e = ring_->entries[FlightRing::slot(sequence)];
  claim(e);
  const std::int64_t number = group_->queued.load(kRelaxed) + (pairwise ? 0 : 1);
  group_->queued.store(number, kRelaxed);
  e.number.store(number, kRelaxed);
  e.pairwise.store(pairwise, kRelaxed);
  e.alike.store(op.kind == Operation::Kind::collective, kRelaxed);
  e.group.store(static_cast<std::int16_t>(group_ - ring_->groups.data()), kRelaxed);
  e.queued_ns.store(nanoseconds_now(), kRelaxed);
  e.started_ns.store(0, kRelaxed);
  e.ended_ns.store(0, kRelaxed);
  e.state.store(FlightState::queued, kRelaxed);
  copy_text(e.text, op.text);
  put_site(e.site, op.site);
  e.sequence.store(sequence, std::memory_order_release);
  ring_->changes.fetch_add(1, kRelaxed);
  return {*ring_, sequence};
}

}  // namespace ring
