#include <CLI/CLI.hpp>
#include <filesystem>
#include <fstream>

#include "core/fields.h"
#include "trainer/commands/bench.h"
#include "trainer/commands/commands.h"

namespace ring {

void BenchConfig::add_to(CLI::App& command) {
  command.add_option("config", file, "Settings file; its corpus is not read")->required();
  command.add_option("overrides", overrides, "Settings to change, as section.key=value");
}

Config BenchConfig::load() const {
  Config config;
  load_config(config, file, overrides);
  return config;
}

std::string BenchConfig::name() const { return std::filesystem::path(file).stem().string(); }

void append_csv(const std::string& path, const std::string& header, const std::string& line) {
  std::string first;
  std::getline(std::ifstream(path) >> std::ws, first);
  if (!first.empty() && first != header)
    fail(path, ": has the columns ", first, ", expected ", header, "; give another file");
  std::ofstream out(path, std::ios::app);
  if (first.empty()) out << header << '\n';
  out << line << '\n';
  if (!out.flush()) fail(path, ": cannot be written");
}

void add_bench_commands(CLI::App& app) {
  CLI::App* bench = app.add_subcommand("bench", "Measure speed: training steps, single kernels, attention");
  bench->require_subcommand(1);
  add_bench_step(*bench);
  add_bench_ops(*bench);
  add_bench_attention(*bench);
  add_bench_context(*bench);
}

}  // namespace ring
