#pragma once
// The gradient norms of a model's parts, in a report.

#include <vector>

#include "inspect/chart.h"
#include "inspect/report_run.h"

namespace ring {

// Lines for the embedding, for blocks in at most four ranges of equal length (the last may be shorter), and for what
// follows them: norms of the gradients of a line's parts together, where all of them were recorded. Empty: none were.
std::vector<ChartLine> part_norm_lines(const ReportRun&);

}  // namespace ring
