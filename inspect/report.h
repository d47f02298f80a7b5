#pragma once
// `ringmaster report`: one self-contained HTML page about one or several runs, which needs neither a network nor other
// files.

#include <string>
#include <vector>

#include "inspect/report_run.h"

namespace ring {

struct ReportOptions {
  double peak_flops = 0;  // see read_report_run()
  SampleOptions samples = {};
};
// Returns the page. A run that cannot be read gets a row with the reason.
std::string report_page(const std::vector<std::string>& runs, const ReportOptions&);
// Returns the page's content between head and script, without samples and pictures of attention.
std::string report_body(const ReportRun&);

}  // namespace ring
