#pragma once
// The contents of a report for one run.

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
  bool mark = false;  // true to also show the event in the charts
};

struct ReportRun {
  RunSummary summary;
  std::map<std::string, Curve> curves;  // "train/loss", "train/mfu", "grad_norm/blocks.3", ...
  std::vector<ReportEvent> events;      // in file order
  // Seconds that the last ended job took, and seconds that it lost to restarts, saves and bad steps.
  double seconds = 0, restart_seconds = 0, save_seconds = 0, bad_step_seconds = 0;
  double peak_flops = 0;                  // total FLOP/s of the run's devices; 0 if unknown
  std::string settings;                   // YAML; empty if the settings cannot be read
  std::vector<std::string> attention;     // a line for each kind of layer, then the share of pairs that are computed
  std::optional<ModelConfig> model;       // resolved; nullopt if the settings cannot be read
  std::vector<CheckpointSample> samples;  // filled in by report_page()
};

// Returns null if there is no curve with this name, or if it has no points.
const Curve* curve_of(const ReportRun&, const std::string& name);

// Reads a run. peak_flops: FLOP/s of one device, overrides the built-in value; 0 keeps the built-in value. Never
// throws: the summary's note lists what cannot be read.
ReportRun read_report_run(const std::string& run, double peak_flops);

}  // namespace ring
