#pragma once
// Draws a run for `ringmaster watch`.

#include <string>
#include <vector>

#include "inspect/curve.h"
#include "inspect/report_run.h"

namespace ring {

// Returns one character for each of at most `columns` equal ranges of points; its height is the mean of the range.
// Ignores points that are not finite; a range without finite points is a blank.
std::string sparkline(const Curve&, std::size_t columns);

// Returns the remaining seconds, estimated from the median time of the last steps; nullopt if unknown.
std::optional<double> seconds_left(const ReportRun&);

// Returns lines of at most `columns` characters; the number of lines is the same for all runs. Below 40 columns, lines
// are truncated.
std::vector<std::string> watch_lines(const ReportRun&, std::size_t columns);

}  // namespace ring
