#include "inspect/report_times.h"

#include <algorithm>
#include <cmath>

#include "core/quantile.h"
#include "inspect/chart.h"
#include "inspect/html.h"

namespace ring {
namespace {

using Rows = std::vector<std::vector<std::string>>;

std::string rounded_percent(double share) { return short_number(std::round(1000 * share) / 10) + " %"; }

// Shows the time of a typical step and the shares in which it waits or computes. Each value is the median of its own
// curve.
std::string steps_html(std::span<const ReportRun> runs) {
  Rows rows = {{"run", "ms of a step", "waits for data", "for other processes", "computes"}};
  for (const ReportRun& r : runs) {
    const std::optional<double> ms = latest_value(r, "train/step_ms");
    if (!ms) continue;
    const double data = latest_value(r, "train/data_share").value_or(0),
                 others = latest_value(r, "train/exchange_share").value_or(0);
    rows.push_back({r.summary.name, short_number(*ms), rounded_percent(data), rounded_percent(others),
                    rounded_percent(std::max(0.0, 1 - data - others))});
  }
  return rows.size() == 1 ? "" : html_table(rows, 1, {}, true);
}

std::string jobs_html(std::span<const ReportRun> runs) {
  Rows rows = {{"run", "seconds of its last job", "lost to restarts", "to saves", "to bad steps"}};
  for (const ReportRun& r : runs)
    if (r.seconds > 0)
      rows.push_back({r.summary.name, short_number(r.seconds), short_number(r.restart_seconds),
                      short_number(r.save_seconds), short_number(r.bad_step_seconds)});
  return rows.size() == 1 ? "" : html_table(rows, 1, {}, true);
}

}  // namespace

std::optional<double> latest_value(const ReportRun& run, const std::string& name) {
  const Curve* curve = curve_of(run, name);
  if (!curve) return std::nullopt;
  std::vector<double> values;
  for (auto p = curve->rbegin(); p != curve->rend() && values.size() < kLastRecords; ++p)
    if (std::isfinite(p->y)) values.push_back(p->y);
  return values.empty() ? std::nullopt : std::optional(median(std::move(values)));
}

std::string times_html(std::span<const ReportRun> runs) {
  const std::string steps = steps_html(runs), jobs = jobs_html(runs);
  if (steps.empty() && jobs.empty()) return "";
  return html_heading("Where the time went") + steps + (steps.empty() || jobs.empty() ? "" : "<br/>\n") + jobs;
}

}  // namespace ring
