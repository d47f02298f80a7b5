#pragma once
// Exports measurements of a job and its run to Prometheus. docs/runs.md lists the metrics; configs/cluster/grafana.json
// is a dashboard for them.

#include <string>

#include "inspect/report_run.h"
#include "job/job_board.h"

namespace ring {

// Content types of the two formats: OpenMetrics 1.0, and Prometheus' older text format 0.0.4. The formats differ in the
// names of counters and in the last line.
inline constexpr const char* kOpenMetricsType = "application/openmetrics-text; version=1.0.0; charset=utf-8";
inline constexpr const char* kTextMetricsType = "text/plain; version=0.0.4; charset=utf-8";

// Returns the metrics, in OpenMetrics if `openmetrics` is true, else in the text format. run: null if the command
// trains no run.
std::string metrics_text(const JobView&, const ReportRun* run, bool openmetrics);

}  // namespace ring
