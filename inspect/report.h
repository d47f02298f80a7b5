#pragma once

#include <string>
#include <vector>

namespace ring {

// A page of HTML that shows runs: curves, tables, settings that differ. It needs nothing beside itself; without scripts
// only the values under the pointer are missing. peak_flops: see read_report_run().
std::string report_page(const std::vector<std::string>& runs, double peak_flops);

}  // namespace ring
