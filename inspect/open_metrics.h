#pragma once
// What a job and its run measure, for Prometheus. docs/runs.md lists the names, and
// configs/cluster/grafana.json shows them.

#include <string>

#include "inspect/report_run.h"
#include "job/job_board.h"

namespace ring {

// The two formats differ in the names of counters and in the end. `open`: OpenMetrics 1.0; else the text format 0.0.4
// that Prometheus had before.
inline constexpr const char* kOpenMetricsType = "application/openmetrics-text; version=1.0.0; charset=utf-8";
inline constexpr const char* kTextMetricsType = "text/plain; version=0.0.4; charset=utf-8";

// run: null: the command has none.
std::string metrics_text(const JobView&, const ReportRun* run, bool open);

}  // namespace ring
