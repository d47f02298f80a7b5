#pragma once
// `ringmaster report`: one page of HTML about one or several runs, which needs no network and no other file.

#include <string>
#include <vector>

#include "inspect/report_run.h"

namespace ring {

struct ReportOptions {
  double peak_flops = 0;  // see read_report_run
  SampleOptions samples = {};
};
// Runs that cannot be read are rows with the reason.
std::string report_page(const std::vector<std::string>& runs, const ReportOptions&);
std::string report_body(const ReportRun&);  // what such a page has between its head and its script

}  // namespace ring
