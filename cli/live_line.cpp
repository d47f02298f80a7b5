#include "cli/live_line.h"

#include <unistd.h>

#include <iostream>
#include <utility>

#include "core/clock.h"
#include "core/log.h"

namespace ring {

LiveLine::LiveLine(Options o)
    : terminal_(o.terminal.value_or(::isatty(STDERR_FILENO) == 1)),
      now_(o.now ? std::move(o.now) : std::function<double()>(seconds_now)),
      started_(now_()),
      shown_(started_) {}

bool LiveLine::is_due() const {
  constexpr double kRedrawSeconds = 0.1, kPlainSeconds = 10;
  return now_() - shown_ >= (terminal_ ? kRedrawSeconds : kPlainSeconds);
}

void LiveLine::show(const std::string& text) {
  if (!is_due()) return;
  shown_ = now_();
  if (terminal_)
    std::cerr << "\r\x1b[K" << text << std::flush;
  else
    log::info(text);
  drawn_ = terminal_;
}

void LiveLine::clear() {
  if (std::exchange(drawn_, false)) std::cerr << "\r\x1b[K" << std::flush;
}

double LiveLine::seconds() const { return now_() - started_; }

}  // namespace ring
