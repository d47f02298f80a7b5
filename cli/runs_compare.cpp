#include <iostream>
#include <memory>

#include "cli/command.h"
#include "cli/data_text.h"
#include "cli/runs.h"
#include "cli/table.h"
#include "core/check.h"
#include "core/quantile.h"
#include "engine/run_directory.h"
#include "trainer/run_compare.h"
#include "trainer/run_summary.h"

namespace ring {
namespace {

constexpr std::size_t kRows = 12;  // number of rows in a table of losses
constexpr int kMaxRuns = 16;

using StepCurve = std::map<std::int64_t, double>;
using Rows = std::vector<std::vector<std::string>>;

struct Compared {
  std::vector<RunSummary> runs;
  std::vector<RunCurves> curves;

  std::vector<const StepCurve*> all(StepCurve RunCurves::*which) const {
    std::vector<const StepCurve*> out;
    for (const RunCurves& c : curves) out.push_back(&(c.*which));
    return out;
  }
  std::vector<std::string> head(const std::string& first) const {
    std::vector<std::string> row = {first};
    for (const RunSummary& r : runs) row.push_back(r.path);
    return row;
  }
};

void print_settings(const std::vector<std::string>& paths, const Compared& c) {
  std::vector<std::string> problems;
  const std::vector<DifferingSetting> settings = differing_settings(paths, &problems);
  Rows rows = {c.head("settings")};
  for (const DifferingSetting& s : settings) {
    rows.push_back({s.key});
    rows.back().insert(rows.back().end(), s.values.begin(), s.values.end());
  }
  if (settings.empty())
    std::cout << "The settings are the same.\n";
  else
    print_table(rows, 1);
  for (const std::string& problem : problems) std::cout << escape_control_characters(problem) << "\n";
}

void print_losses(const char* title, const std::vector<const StepCurve*>& curves, const Compared& c) {
  const std::vector<std::int64_t> steps = common_steps(curves, kRows);
  if (steps.empty()) {
    std::cout << "\nThe runs have no common step with a " << title << ".\n";
    return;
  }
  Rows rows = {c.head(str(title, " at step"))};
  for (const std::int64_t step : steps) {
    rows.push_back({str(step)});
    for (const StepCurve* curve : curves) rows.back().push_back(loss_text(curve->at(step)));
  }
  std::cout << "\n";
  print_table(rows, 0);
}

// Returns the median of the curve's values at these steps; nullopt if it has none.
std::optional<double> middle(const StepCurve& curve, const std::vector<std::int64_t>& steps) {
  std::vector<double> values;
  for (const std::int64_t step : steps)
    if (curve.contains(step)) values.push_back(curve.at(step));
  return values.empty() ? std::nullopt : std::optional(median(std::move(values)));
}

void print_speed(const Compared& c) {
  const auto all = common_steps(c.all(&RunCurves::step_ms), static_cast<std::size_t>(-1));
  Rows rows = {c.head(str("medians of ", all.size(), " common steps"))};
  const auto row = [&](const char* name, const auto& text_of) {
    rows.push_back({name});
    for (std::size_t i = 0; i < c.runs.size(); ++i) rows.back().push_back(text_of(c.runs[i], c.curves[i]));
  };
  row("tokens/s", [&](const RunSummary&, const RunCurves& v) { return speed_text(middle(v.tokens_per_second, all)); });
  const auto ms = [](std::optional<double> v) { return v ? format_fixed(*v, 2) : "-"; };
  row("ms of a step", [&](const RunSummary&, const RunCurves& v) { return ms(middle(v.step_ms, all)); });
  row("ms waiting for data", [&](const RunSummary&, const RunCurves& v) { return ms(middle(v.data_ms, all)); });
  row("peak memory", [](const RunSummary& r, const RunCurves&) { return memory_text(r.memory_peak); });
  row("goodput", [](const RunSummary& r, const RunCurves&) { return percent_text(r.goodput); });
  row("best validation loss", [](const RunSummary& r, const RunCurves&) { return loss_text(r.validation_loss); });
  row("status", [](const RunSummary& r, const RunCurves&) { return r.status; });
  std::cout << "\n";
  print_table(rows, 1);
}

void compare(const std::vector<std::string>& given) {
  Compared c;
  std::vector<std::string> paths;
  for (const std::string& path : given) {
    paths.push_back(find_run(path).path());
    c.runs.push_back(summarize_run(paths.back()));
    c.curves.push_back(read_curves(paths.back()));
  }
  print_settings(paths, c);
  print_losses("validation loss", c.all(&RunCurves::validation_loss), c);
  print_losses("training loss", c.all(&RunCurves::loss), c);
  print_speed(c);
  for (const RunSummary& r : c.runs)
    if (!r.note.empty())
      std::cout << escape_control_characters(r.path) << ": " << escape_control_characters(r.note) << "\n";
}

}  // namespace

void add_runs_compare(Command runs) {
  auto paths = std::make_shared<std::vector<std::string>>();
  const Command c = runs.add_subcommand("compare", "Print settings that differ, and losses and speed at common steps");
  c.add_option("runs", *paths, str("Directories of 2 to ", kMaxRuns, " runs"))
      .required()
      .takes_at_least(2)  // CLI11 has no type name for "2 to 16"; the maximum is checked below
      .type_name("RUN");
  c.footer("Example: ringmaster runs compare runs/a runs/b");
  c.set_callback([paths] {
    if (std::ssize(*paths) > kMaxRuns)
      throw UsageError(str("runs: At Most ", kMaxRuns, " required but received ", paths->size()));
    compare(*paths);
  });
}

}  // namespace ring
