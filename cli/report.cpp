#include <CLI/CLI.hpp>
#include <filesystem>
#include <iostream>
#include <memory>

#include "cli/commands.h"
#include "cli/number_option.h"
#include "core/check.h"
#include "core/counted.h"
#include "data/output_file.h"
#include "inspect/report.h"
#include "trainer/run_directory.h"

namespace ring {
namespace {

struct Arguments {
  std::vector<std::string> runs;
  std::string output = "report.html";
  double peak_tflops = 0;
  SampleOptions samples;
};

// A damaged run is a row of the report, but a folder that is none is a slip.
std::string run_at(const std::string& path) {
  std::error_code error;
  const bool records = std::filesystem::exists(RunDirectory(path).metrics_file(), error);
  return records ? path : find_run(path).path();
}

void report(const Arguments& a) {
  std::vector<std::string> runs;
  for (const std::string& run : a.runs) runs.push_back(run_at(run));
  check_writable(a.output);
  write_whole(a.output, report_page(runs, {1e12 * a.peak_tflops, a.samples}));
  std::cout << a.output << ": " << counted(static_cast<std::int64_t>(runs.size()), "run") << "\n";
}

}  // namespace

void add_report_command(CLI::App& app) {
  constexpr double kMostTflops = 1e9;
  constexpr std::int64_t kMostSampleTokens = 10'000;
  CLI::App* c = app.add_subcommand("report", "Write one page of HTML with the curves and settings of runs");
  auto a = std::make_shared<Arguments>();
  c->add_option("runs", a->runs, "directories of runs")->required()->type_name("RUN");
  c->add_option("--output", a->output, "The file to write")->type_name("FILE")->capture_default_str();
  add_number(*c, "--peak-tflops", a->peak_tflops,
             "For MFU: what one device can do; 0: what is known, 989 of an H100 (SXM) or H200", 0, kMostTflops);
  c->add_option("--sample", a->samples.prompt, "Show how the checkpoints of each run go on after this text")
      ->type_name("TEXT");
  add_number(*c, "--sample-tokens", a->samples.tokens, "Tokens of each sample at most", 1, kMostSampleTokens)
      ->capture_default_str();
  add_number(*c, "--threads", a->samples.threads, "CPU threads for samples; 0: all cores", 0, kMostThreads);
  c->footer("Example: ringmaster report runs/a runs/b --sample \"The \" --output report.html");
  c->callback([a] { report(*a); });
}

}  // namespace ring
