#pragma once
// Curves of a report that are recorded for parts of a model.

#include <vector>

#include "inspect/chart.h"
#include "inspect/report_run.h"

namespace ring {

// How a line combines its parts: root of the sum of squares (the norm of all parts together), or mean.
enum class Together { root_of_squares, mean };

// Returns lines for the embedding, for at most four ranges of blocks of equal length (the last may be shorter), and for
// the parts after the blocks. A line only has steps at which all its parts were recorded. Empty if `group` has no
// records by part.
std::vector<ChartLine> part_lines(const ReportRun&, const std::string& group, Together);

}  // namespace ring
