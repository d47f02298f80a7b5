#include <algorithm>
#include <filesystem>
#include <fstream>

#include "cli/bench.h"
#include "cli/command.h"
#include "cli/commands.h"
#include "cli/settings.h"
#include "core/check.h"
#include "core/joined.h"

namespace ring {

void BenchConfig::add_to(Command command) {
  command.add_option("config", file, str(kSettingsText, "; its corpus is not read")).required();
  command.add_option("overrides", overrides, "Settings to change, such as section.key=value");
}

// A benchmark runs the layout that it is given: only `train` chooses one.
Config BenchConfig::load() const {
  Config c = load_settings(file, overrides);
  c.parallel = without_auto(c.parallel);
  c.parallel.chosen.clear();
  return c;
}

std::string BenchConfig::name() const { return std::filesystem::path(file).stem().string(); }

CsvFile::CsvFile(const std::string& path, const std::string& header) : path_(path) {
  if (path.empty()) return;
  std::string first;
  std::getline(std::ifstream(path) >> std::ws, first);  // allowed open: output (named by the user)
  if (!first.empty() && first != header)
    fail(path, ": expected the columns ", header, ", got ", first, ". Give another file");
  out_ = LineFile(path);
  if (first.empty()) add(header);
}

void CsvFile::add(const std::string& line) {
  if (!path_.empty()) out_.add(line);
}

Facts facts_of_options(Command command, const std::vector<std::string>& ignored) {
  Facts facts;
  for (Option option : command.named_options()) {
    const std::string name = option.name();
    if (std::ranges::find(ignored, name) != ignored.end()) continue;
    facts.push_back({name, option.given() ? joined(option.values(), " ") : "not given"});
  }
  return facts;
}

void add_bench_commands(Command app) {
  const Command bench = app.add_subcommand("bench", "Measure speed: training steps, single kernels, attention");
  bench.require_subcommand();
  add_bench_step(bench);
  add_bench_ops(bench);
  add_bench_products(bench);
  add_bench_attention(bench);
  add_bench_blocks(bench);
  add_bench_context(bench);
  add_bench_calibrate(bench);
  add_bench_links(bench);
}

}  // namespace ring
