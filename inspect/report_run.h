#pragma once
// What a report shows of one run.

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "inspect/curve.h"
#include "inspect/report_samples.h"
#include "model/config.h"
#include "trainer/run_summary.h"

namespace ring {

struct ReportEvent {
  double step = 0;
  std::string text;
  bool mark = false;  // in the charts, too
};

struct ReportRun {
  RunSummary summary;
  std::map<std::string, Curve> curves;  // "train/loss", "train/mfu", "grad_norm/blocks.3", ...
  std::vector<ReportEvent> events;      // in the order of the file
  double seconds = 0, restart_seconds = 0, save_seconds = 0, bad_step_seconds = 0;  // of its last job that ended
  double peak_flops = 0;                                                            // of all its devices; 0: not known
  std::string settings;                                                             // YAML; empty: they cannot be read
  std::vector<std::string> attention;                                               // a line for each kind of layer
  std::optional<ModelConfig> model;                                                 // resolved
  std::vector<CheckpointSample> samples;                                            // where they were asked for
};

// Null: there is none of that name, or it has no point.
const Curve* curve_of(const ReportRun&, const std::string& name);

// peak_flops: of one device, instead of what is known of it; 0: none given. Never fails: what cannot be read is missing
// and said in the summary's note.
ReportRun read_report_run(const std::string& run, double peak_flops);

}  // namespace ring
