#pragma once
// What is recorded by parts of a model, in a report.

#include <vector>

#include "inspect/chart.h"
#include "inspect/report_run.h"

namespace ring {

// What a line shows of its parts: norms as that of all together, or the mean.
enum class Together { root_of_squares, mean };

// Lines of a group of records for the embedding, for blocks in at most four ranges of equal length (the last may be
// shorter), and for what follows them, where all parts of a line were recorded. Empty: none were.
std::vector<ChartLine> part_lines(const ReportRun&, const std::string& group, Together);

}  // namespace ring
