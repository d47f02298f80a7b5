#pragma once

#include <string>
#include <vector>

namespace ring {

// The records of runs as CSV (RFC 4180): a row for each, in the order of the files, and a column for each key: run,
// step, group, time, then the others in the order in which they first occur. What a record does not have is empty;
// numbers that are not finite are nan, inf and -inf. Error: metrics.jsonl of a run cannot be read.
std::string metrics_csv(const std::vector<std::string>& runs);

}  // namespace ring
