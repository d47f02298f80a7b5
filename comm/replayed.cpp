#include "comm/replayed.h"

#include <atomic>
#include <new>
#include <utility>

namespace ring {
namespace {

std::uint32_t now_at(std::uint32_t& count) { return std::atomic_ref(count).load(std::memory_order_acquire); }

}  // namespace

ReplayedOperations::ReplayedOperations(std::shared_ptr<void> memory) : memory_(std::move(memory)) {
  for (std::size_t i = 0; i < kMost; ++i) new (&counts(i)) ReplayCounts;
}

// Leaves the counters of a reused slot as they are: the host must not write memory that the device increments.
ReplayCounts& ReplayedOperations::add(std::string text) {
  const std::size_t at = std::exchange(next_, (next_ + 1) % kMost);
  if (at == watched_.size()) watched_.emplace_back();
  watched_[at] = {std::move(text), 0, {}};
  return counts(at);
}

std::optional<std::string> ReplayedOperations::find_timed_out(Clock::time_point now, std::chrono::milliseconds limit) {
  for (std::size_t i = 0; i < watched_.size(); ++i) {
    Watched& w = watched_[i];
    const std::uint32_t done = now_at(counts(i).done), started = now_at(counts(i).started);
    if (started == done) {
      w.since.reset();
    } else if (!w.since || w.started != started) {
      w.since = now;
      w.started = started;
    } else if (now - *w.since > limit) {
      return w.text;
    }
  }
  return {};
}

}  // namespace ring
