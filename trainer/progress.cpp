#include "trainer/progress.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "core/check.h"
#include "core/clock.h"
#include "core/log.h"
#include "core/standard_streams.h"

namespace ring {
namespace {

constexpr int kDefaultColumns = 80;
constexpr int kMinBar = 8;
constexpr int kMaxBar = 40;

ProgressOptions with_defaults(ProgressOptions o) {
  if (!o.out) o.out = &progress_output();
  if (!o.terminal) o.terminal = is_terminal();
  if (!o.columns) o.columns = terminal_columns;
  if (!o.now) o.now = seconds_now;
  return o;
}

std::string fixed(double v, int digits) {
  if (!std::isfinite(v)) return std::isnan(v) ? "nan" : v > 0 ? "inf" : "-inf";
  std::array<char, 400> buffer;
  std::snprintf(buffer.data(), buffer.size(), "%.*f", digits, v);
  return buffer.data();
}

std::string scientific(double v) {
  std::array<char, 32> buffer;
  std::snprintf(buffer.data(), buffer.size(), "%.2e", v);
  return buffer.data();
}

std::string steps(const ProgressState& s) {
  return s.total_steps > 0 ? str(s.step, "/", s.total_steps) : str("step ", s.step);
}

std::string bar(const ProgressState& s, int cells) {
  const double share = std::clamp(static_cast<double>(s.step) / static_cast<double>(s.total_steps), 0.0, 1.0);
  const auto full = static_cast<std::size_t>(share * cells);
  std::string out(static_cast<std::size_t>(cells), ' ');
  std::fill_n(out.begin(), full, '=');
  if (full < out.size()) out[full] = '>';
  return "[" + out + "] ";
}

struct Part {
  int rank;  // order of importance from 0; if the line is too long, the highest rank is dropped first
  std::string text;
};

std::vector<Part> parts(const ProgressState& s) {
  std::vector<Part> out = {{0, steps(s)}, {1, "loss " + fixed(s.loss, 4)}};
  if (s.val_loss) out.push_back({4, "val " + fixed(*s.val_loss, 4)});
  if (!std::isnan(s.tokens_per_second)) out.push_back({3, format_count(s.tokens_per_second) + " tok/s"});
  if (!std::isnan(s.step_ms)) out.push_back({5, format_step_time(s.step_ms) + "/step"});
  if (!std::isnan(s.eta_seconds)) out.push_back({2, "ETA " + format_duration(s.eta_seconds)});
  return out;
}

std::string joined_parts(const std::vector<Part>& parts) {
  std::string out;
  for (const Part& p : parts) out += str(out.empty() ? "" : "  ", p.text);
  return out;
}

}  // namespace

bool is_terminal() {
  const char* term = std::getenv("TERM");
  return isatty(STDOUT_FILENO) && term && std::string(term) != "dumb";
}

int terminal_columns() {
  winsize size{};
  return ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : kDefaultColumns;
}

std::string format_step_time(double ms) {
  if (!std::isfinite(ms) || ms < 0) return "?";
  if (ms < 999.5) return fixed(ms, ms < 99.95 ? 1 : 0) + " ms";
  const double seconds = ms / 1000;
  return fixed(seconds, seconds < 9.995 ? 2 : seconds < 99.95 ? 1 : 0) + " s";
}

std::string format_count(double n) {
  if (!std::isfinite(n) || n < 0) return "?";
  static constexpr std::array<const char*, 5> kUnits = {"", "k", "M", "G", "T"};
  std::size_t unit = 0;
  while (n >= 999.5 && unit + 1 < kUnits.size()) n /= 1000, ++unit;
  const int digits = unit == 0 || n >= 99.95 ? 0 : n >= 9.995 ? 1 : 2;
  return fixed(n, digits) + kUnits[unit];
}

std::string live_line(const ProgressState& s, int columns) {
  std::vector<Part> shown = parts(s);
  const auto room = static_cast<std::size_t>(std::max(columns, 1));
  const auto less = [](const Part& a, const Part& b) { return a.rank < b.rank; };
  while (shown.size() > 1 && joined_parts(shown).size() > room) {
    shown.erase(std::max_element(shown.begin(), shown.end(), less));
  }
  const std::string text = joined_parts(shown).substr(0, room);
  // The bar's two brackets and the space after it take 3 columns.
  const int cells = std::min(kMaxBar, static_cast<int>(room - text.size()) - 3);
  return s.total_steps > 0 && cells >= kMinBar ? bar(s, cells) + text : text;
}

std::string plain_line(const ProgressState& s) {
  std::vector<Part> all = parts(s);
  if (s.total_steps > 0) all[0].text = "step " + all[0].text;
  if (!std::isnan(s.lr)) all.push_back({6, "lr " + scientific(s.lr)});
  return joined_parts(all);
}

Progress::Progress(ProgressOptions options)
    : options_(with_defaults(std::move(options))), out_(*options_.out), terminal_(*options_.terminal) {
  if (!terminal_) return;
  log::set_before_line([this] {
    std::lock_guard lock(mutex_);
    clear();
  });
}

Progress::~Progress() {
  if (!terminal_) return;
  log::set_before_line(nullptr);
  std::lock_guard lock(mutex_);
  clear();
}

// Call without holding mutex_: the log line clears the live line, which takes mutex_.
void Progress::warn_if_output_lost() {
  if (told_ || out_) return;
  told_ = true;
  log::warn("standard output can no longer be written (", lost_output_reason(out_),
            "). Training continues without showing progress");
}

void Progress::update(const ProgressState& s) {
  show(s);
  warn_if_output_lost();
}

void Progress::show(const ProgressState& s) {
  std::lock_guard lock(mutex_);
  if (!first_step_) first_step_ = s.step - 1;
  if (terminal_) {
    const double now = options_.now();
    if (now - drawn_ < options_.redraw_seconds) return;
    drawn_ = now;
    draw(s);
  } else if (s.step % std::max<std::int64_t>(1, options_.log_interval) == 0) {
    out_ << plain_line(s) << std::endl;
  }
}

void Progress::print_line(const std::string& text) {
  {
    std::lock_guard lock(mutex_);
    clear();
    out_ << text << std::endl;
  }
  warn_if_output_lost();
}

void Progress::finish(const ProgressState& s, const TimeSpent& time) {
  std::lock_guard lock(mutex_);
  clear();
  const std::int64_t done = s.step - first_step_.value_or(s.step);
  out_ << "trained " << done << (done == 1 ? " step" : " steps") << " in " << time.text() << " (" << steps(s)
       << "), loss " << fixed(s.loss, 4);
  if (s.val_loss) out_ << ", validation loss " << fixed(*s.val_loss, 4);
  out_ << std::endl;
}

void Progress::draw(const ProgressState& s) {
  // The last column stays free: some terminals wrap the line when this column is written.
  out_ << "\r\x1b[K" << live_line(s, options_.columns() - 1) << std::flush;
  visible_ = true;
}

void Progress::clear() {
  if (visible_) out_ << "\r\x1b[K" << std::flush;
  visible_ = false;
}

}  // namespace ring
