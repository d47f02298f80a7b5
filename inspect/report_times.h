#pragma once
// Where the time of runs went, in a report.

#include <optional>
#include <span>
#include <string>

#include "inspect/report_run.h"

namespace ring {

// The median of a curve's last kLastRecords points that are finite, as the speed of a summary is; nothing: there is
// none.
std::optional<double> recent(const ReportRun&, const std::string& curve);

// Markup: a step by what it waits for, and what jobs lost; empty: nothing is known.
std::string times_html(std::span<const ReportRun>);

}  // namespace ring
