#include "comm/pending.h"

#include <utility>

namespace ring {

void PendingOperations::add(std::string text, Event after, Event done, RecordedOperation record) {
  pending_.push_back({std::move(text), std::move(after), std::move(done), record, {}});
}

std::optional<std::string> PendingOperations::find_timed_out(Clock::time_point now, std::chrono::milliseconds limit) {
  try {
    for (; !pending_.empty() && pending_.front().done.done(); pending_.pop_front())
      pending_.front().record.mark_ended(true);
    if (pending_.empty()) return {};
    Pending& oldest = pending_.front();
    if (!oldest.since && oldest.after.done()) {
      oldest.since = now;
      oldest.record.mark_started();
    }
    if (oldest.since && now - *oldest.since > limit) return oldest.text;
    return {};
  } catch (const Error& e) {
    fail(pending_.front().text, ": ", e.what());
  }
}

}  // namespace ring
