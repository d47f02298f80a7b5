#include <iostream>

#include "cli/command.h"
#include "cli/commands.h"
#include "cli/output_option.h"
#include "data/output_file.h"
#include "engine/run_directory.h"
#include "trainer/metrics_csv.h"

namespace ring {
namespace {

struct MetricsArguments {
  std::vector<std::string> runs;
  std::string format = "csv", output;
};

void export_metrics(const MetricsArguments& a) {
  std::vector<std::string> runs;
  for (const std::string& run : a.runs) runs.push_back(find_run(run).path());
  if (!a.output.empty()) check_output("--output", a.output);
  const std::string csv = metrics_csv(runs);
  if (a.output.empty())
    std::cout << csv;
  else
    write_whole(a.output, csv);
}

}  // namespace

void add_metrics_command(Command app) {
  const Command metrics = app.add_subcommand("metrics", "Export the metrics of runs for other programs");
  metrics.require_subcommand();
  const Command c = metrics.add_subcommand("export", "Write the metrics of runs as one table");
  MetricsArguments& a = c.runs(export_metrics);
  c.add_option("runs", a.runs, "directories of runs").required().type_name("RUN");
  c.add_option("--format", a.format, "Format of the table").one_of({"csv"}).show_default();
  c.add_option("--output", a.output, "File to write; default: standard output").type_name("FILE");
  c.footer("Example: ringmaster metrics export runs/a runs/b --format csv --output metrics.csv");
}

}  // namespace ring
