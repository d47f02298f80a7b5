#include "cli/watch_view.h"

#include <algorithm>
#include <cmath>
#include <cstdio>

#include "cli/data_text.h"
#include "cli/runs.h"
#include "core/check.h"
#include "inspect/report_times.h"
#include "text/utf8.h"
#include "trainer/progress.h"

namespace ring {
namespace {

constexpr const char* kBlocks[] = {"▁", "▂", "▃", "▄", "▅", "▆", "▇", "█"};
constexpr std::size_t kName = 12, kValue = 11;  // number of columns, including a blank at the end
constexpr std::size_t kLeast = 40;              // minimum width for the layout; narrower lines are truncated

// Pads or truncates text to exactly this number of characters.
std::string fitted(const std::string& text, std::size_t columns) {
  std::string_view rest = text;
  std::size_t n = 0;
  for (; n < columns && !rest.empty(); ++n) rest.remove_prefix(std::max<std::size_t>(utf8::valid_length(rest), 1));
  return text.substr(0, text.size() - rest.size()) + std::string(columns - n, ' ');
}

std::optional<double> last_of(const ReportRun& run, const char* name) {
  const Curve* curve = curve_of(run, name);
  return curve ? std::optional(curve->back().y) : std::nullopt;
}

// Formats a number with three digits.
std::string number(double v) {
  if (!std::isfinite(v)) return format_fixed(v, 0);
  char text[40];
  std::snprintf(text, sizeof text, "%.3g", v);
  return text;
}

std::string number_or_none(std::optional<double> v) { return v ? number(*v) : "-"; }

class View {
 public:
  View(const ReportRun& run, std::size_t columns) : run_(run), columns_(std::max(columns, kLeast)), shown_(columns) {}

  std::vector<std::string> lines() {
    head();
    bar();
    row("loss", loss_text(last_of(run_, "train/loss")), drawn("train/loss"));
    row("validation", loss_text(last_of(run_, "validation/loss")), drawn("validation/loss"));
    row("grad norm", number_or_none(last_of(run_, "train/grad_norm")), drawn("train/grad_norm"));
    row("lr", number_or_none(last_of(run_, "train/lr")), drawn("train/lr"));
    row("tokens/s", speed_text(run_.summary.tokens_per_second), drawn("train/tokens_per_second"));
    row("step", step_text(), phases());
    row("memory", memory_text(last_of(run_, "train/memory_in_use")),
        str("peak ", memory_text(run_.summary.memory_peak)));
    row("restarts", str(run_.summary.restarts), events());
    return lines_;
  }

 private:
  void add(const std::string& line) {
    std::string whole = fitted(escape_control_characters(line), shown_);
    whole.erase(whole.find_last_not_of(' ') + 1);
    lines_.push_back(std::move(whole));
  }
  void row(const std::string& name, const std::string& value, const std::string& more) {
    add(fitted(name, kName) + fitted(value, kValue - 1) + ' ' + more);
  }
  std::string drawn(const char* name) const {
    const Curve* curve = curve_of(run_, name);
    return curve ? sparkline(*curve, columns_ - kName - kValue) : "";
  }

  void head() {
    const RunSummary& s = run_.summary;
    const std::string age = s.age ? str(", last record ", format_duration(*s.age), " ago") : "";
    add(str(s.path, ": ", s.status, age, s.note.empty() ? "" : "; " + s.note));
  }
  void bar() {
    const RunSummary& s = run_.summary;
    if (!s.steps) return add(str("step ", s.step));
    const double done = std::clamp(static_cast<double>(s.step) / static_cast<double>(s.steps), 0.0, 1.0);
    const std::optional<double> left = seconds_left(run_);
    const std::string text = str(" ", s.step, "/", s.steps, left ? ", " + format_duration(*left) + " left" : "");
    const std::size_t room = columns_ - std::min(columns_ - 10, text.size());
    const auto full = static_cast<std::size_t>(done * static_cast<double>(room));
    std::string bar;
    for (std::size_t i = 0; i < room; ++i) bar += i < full ? "█" : "░";
    add(bar + text);
  }

  std::string step_text() const {
    const auto ms = last_of(run_, "train/step_ms");
    return ms ? format_step_time(*ms) : "-";
  }
  // Describes the phases of the last recorded step.
  std::string phases() const {
    const auto ms = last_of(run_, "train/step_ms");
    if (!ms) return "";
    const double data = last_of(run_, "train/data_share").value_or(0) * *ms;
    const double others = last_of(run_, "train/exchange_share").value_or(0) * *ms;
    const std::string waits = run_.summary.processes > 1 ? ", other processes " + format_step_time(others) : "";
    return str("data ", format_step_time(data), waits, ", computing ", format_step_time(*ms - data - others));
  }
  std::string events() const {
    if (run_.events.empty()) return "";
    const ReportEvent& last = run_.events.back();
    return str("step ", last.step, ": ", last.text);
  }

  const ReportRun& run_;
  std::size_t columns_, shown_;
  std::vector<std::string> lines_;
};

}  // namespace

std::string sparkline(const Curve& curve, std::size_t columns) {
  const std::size_t stretches = std::min(columns, curve.size());
  std::vector<double> means;
  for (std::size_t i = 0; i < stretches; ++i) {
    double sum = 0, n = 0;
    for (std::size_t p = i * curve.size() / stretches; p < (i + 1) * curve.size() / stretches; ++p)
      if (std::isfinite(curve[p].y)) sum += curve[p].y, ++n;
    means.push_back(n > 0 ? sum / n : std::nan(""));
  }
  double low = INFINITY, high = -INFINITY;
  for (const double m : means)
    if (std::isfinite(m)) low = std::min(low, m), high = std::max(high, m);
  std::string out;
  for (const double m : means) {
    const double share = high > low ? (m - low) / (high - low) : 0;
    out += std::isfinite(m) ? kBlocks[static_cast<std::size_t>(std::lround(7 * share))] : " ";
  }
  return out;
}

std::optional<double> seconds_left(const ReportRun& run) {
  const std::optional<double> ms = latest_value(run, "train/step_ms");
  if (!ms || run.summary.steps <= run.summary.step) return std::nullopt;
  return *ms / 1000 * static_cast<double>(run.summary.steps - run.summary.step);
}

std::vector<std::string> watch_lines(const ReportRun& run, std::size_t columns) { return View(run, columns).lines(); }

}  // namespace ring
