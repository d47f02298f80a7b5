#include <filesystem>
#include <iostream>

#include "cli/command.h"
#include "cli/commands.h"
#include "cli/output_option.h"
#include "core/check.h"
#include "core/counted.h"
#include "core/log.h"
#include "data/output_file.h"
#include "engine/run_directory.h"
#include "inspect/report.h"

namespace ring {
namespace {

struct ReportArguments {
  std::vector<std::string> runs;
  std::string output = "report.html";
  double peak_tflops = 0;
  SampleOptions samples;
};

namespace fs = std::filesystem;

// Returns true if the system refuses to list an existing folder.
bool refuses_to_list(const std::string& folder) {
  std::error_code error;
  const fs::directory_iterator at(folder, error);
  return error && error != std::errc::no_such_file_or_directory && error != std::errc::not_a_directory;
}

// Returns the run's directory, even if the run is damaged or cannot be read: the run is then a row in the report.
// Throws Error if there is no run.
std::string run_at(const std::string& path) {
  std::error_code error;
  const RunDirectory run(path);
  if (fs::exists(run.metrics_file(), error)) return path;
  try {
    return find_run(path).path();
  } catch (const Error& e) {
    if (!refuses_to_list(path) && !refuses_to_list(run.checkpoints())) throw;
    log::warn(e.what(), ". The report leaves it out");
    return path;
  }
}

void report(const ReportArguments& a) {
  std::vector<std::string> runs;
  for (const std::string& run : a.runs) runs.push_back(run_at(run));
  check_output("--output", a.output);
  write_whole(a.output, report_page(runs, {1e12 * a.peak_tflops, a.samples}));
  std::cout << a.output << ": " << counted(static_cast<std::int64_t>(runs.size()), "run") << "\n";
}

}  // namespace

void add_report_command(Command app) {
  constexpr double kMaxTflops = 1e9;
  constexpr std::int64_t kMaxSampleTokens = 10'000;
  const Command c = app.add_subcommand("report", "Write an HTML page with the curves and settings of runs");
  ReportArguments& a = c.runs(report);
  c.add_option("runs", a.runs, "directories of runs").required().type_name("RUN");
  c.add_option("--output", a.output, "File to write").type_name("FILE").show_default();
  c.add_number("--peak-tflops", a.peak_tflops,
               "Peak TFLOP/s of one device, for MFU; 0: 989 for an H100 (SXM) or H200, else unknown", 0, kMaxTflops);
  c.add_option("--sample", a.samples.prompt, "Show how the checkpoints of each run continue this text")
      .type_name("TEXT");
  c.add_number("--sample-tokens", a.samples.tokens, "Maximum tokens per sample", 1, kMaxSampleTokens).show_default();
  c.add_number("--threads", a.samples.threads, "CPU threads for samples; 0: all cores", 0, kMaxThreads);
  c.footer("Example: ringmaster report runs/a runs/b --sample \"The \" --output report.html");
}

}  // namespace ring
