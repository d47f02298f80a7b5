#include "comm/pending.h"

#include <utility>

namespace ring {

void PendingOperations::add(std::string text, Event after, Event done) {
  pending_.push_back({std::move(text), std::move(after), std::move(done), {}});
}

std::optional<std::string> PendingOperations::stuck(Clock::time_point now, std::chrono::milliseconds limit) {
  try {
    while (!pending_.empty() && pending_.front().done.done()) pending_.pop_front();
    if (pending_.empty()) return {};
    Pending& oldest = pending_.front();
    if (!oldest.since && oldest.after.done()) oldest.since = now;
    if (oldest.since && now - *oldest.since > limit) return oldest.text;
    return {};
  } catch (const Error& e) {
    fail(pending_.front().text, ": ", e.what());
  }
}

}  // namespace ring
