#pragma once

#include <string>
#include <vector>

namespace ring {

// Returns the records of runs as CSV (RFC 4180). Rows are records, in the order of the files. Columns are run, step,
// group and time, then the other keys in the order of their first occurrence. If a record lacks a value, the cell is
// empty; non-finite numbers are nan, inf and -inf. Throws Error if metrics.jsonl of a run cannot be read.
std::string metrics_csv(const std::vector<std::string>& runs);

}  // namespace ring
