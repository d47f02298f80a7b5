#pragma once
// What `ringmaster watch` draws of a run.

#include <string>
#include <vector>

#include "inspect/curve.h"
#include "inspect/report_run.h"

namespace ring {

// A character for each of at most `columns` stretches of equally many points: their mean, from the lowest to the
// highest. Values that are not finite are left out; a stretch without another is a blank.
std::string sparkline(const Curve&, std::size_t columns);

// Seconds that are left, by the median time of the last steps. Nothing: not known.
std::optional<double> seconds_left(const ReportRun&);

// Lines of at most `columns` characters, as many for every run; below 40 their ends are missing.
std::vector<std::string> watch_lines(const ReportRun&, std::size_t columns);

}  // namespace ring
