#pragma once
// The section of a report that shows how runs spent their time.

#include <optional>
#include <span>
#include <string>

#include "inspect/report_run.h"

namespace ring {

// Returns the median of the curve's last kLastRecords finite points (as for the speed in a run's summary); nullopt if
// there are none.
std::optional<double> latest_value(const ReportRun&, const std::string& curve);

// Returns markup: the shares of a step by what the step waits for, and the time that jobs lost. Empty if neither is
// known.
std::string times_html(std::span<const ReportRun> runs);

}  // namespace ring
