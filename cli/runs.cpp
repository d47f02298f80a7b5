#include "cli/runs.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>

#include "cli/command.h"
#include "cli/commands.h"
#include "cli/data_text.h"
#include "cli/table.h"
#include "core/check.h"
#include "core/json.h"
#include "trainer/progress.h"
#include "trainer/run_summary.h"

namespace ring {
namespace {

struct ListArguments {
  std::string folder = "runs", sort = "name";
  bool json = false;
};

constexpr const char* kNone = "-";

// Sort key for runs: the best, newest or furthest run comes first; runs without a value come last.
struct Key {
  std::string name;
  // Runs are sorted by this value in ascending order; if it is null, by name.
  std::function<std::optional<double>(const RunSummary&)> value;
};

std::optional<double> larger_is_better(std::optional<double> v) {
  return ascending_key(v) ? std::optional(-*v) : std::nullopt;
}

const std::vector<Key>& keys() {
  using R = const RunSummary&;
  static const std::vector<Key> all = {
      {"name", nullptr},
      {"step", [](R r) { return larger_is_better(static_cast<double>(r.step)); }},
      {"loss", [](R r) { return ascending_key(r.loss); }},
      {"validation_loss", [](R r) { return ascending_key(r.validation_loss); }},
      {"tokens_per_second", [](R r) { return larger_is_better(r.tokens_per_second); }},
      {"goodput", [](R r) { return larger_is_better(r.goodput); }},
      {"restarts", [](R r) { return larger_is_better(static_cast<double>(r.restarts)); }},
      {"memory_peak", [](R r) { return larger_is_better(r.memory_peak); }},
      {"age", [](R r) { return ascending_key(r.age); }}};
  return all;
}

std::vector<std::string> key_names() {
  std::vector<std::string> names;
  for (const Key& key : keys()) names.push_back(key.name);
  return names;
}

void sort_by(const std::string& name, std::vector<RunSummary>& runs) {
  const Key& key = *std::ranges::find(keys(), name, &Key::name);
  if (!key.value) return;  // already sorted by name
  std::ranges::stable_sort(runs, [&](const RunSummary& a, const RunSummary& b) {
    const auto x = key.value(a), y = key.value(b);
    return x && y ? *x < *y : x && !y;
  });
}

std::string steps_text(const RunSummary& r) { return r.steps ? str(r.step, "/", r.steps) : str(r.step); }

std::string device_text(const RunSummary& r) {
  if (r.device.empty()) return kNone;
  return r.processes > 1 ? str(r.processes, " x ", r.device) : r.device;
}

void print(const std::vector<RunSummary>& runs) {
  std::vector<std::vector<std::string>> rows = {
      {"run", "status", "device", "step", "loss", "validation", "tokens/s", "goodput", "restarts", "age"}};
  for (const RunSummary& r : runs)
    rows.push_back({r.name, r.status, device_text(r), steps_text(r), loss_text(r.loss), loss_text(r.validation_loss),
                    speed_text(r.tokens_per_second), percent_text(r.goodput), str(r.restarts),
                    r.age ? format_duration(*r.age) : kNone});
  print_table(rows, 3);
  if (!runs.empty()) std::cout << "(goodput: share of the time that was not lost to failures and restarts)\n";
  for (const RunSummary& r : runs)
    if (!r.note.empty())
      std::cout << escape_control_characters(r.name) << ": " << escape_control_characters(r.note) << "\n";
}

nlohmann::ordered_json json_number(std::optional<double> value) {
  return value && std::isfinite(*value) ? nlohmann::ordered_json(*value) : nlohmann::ordered_json();
}

nlohmann::ordered_json json_of(const RunSummary& r) {
  return {{"name", r.name},
          {"path", r.path},
          {"status", r.status},
          {"note", r.note},
          {"step", r.step},
          {"steps", r.steps},
          {"loss", json_number(r.loss)},
          {"validation_loss", json_number(r.validation_loss)},
          {"tokens_per_second", json_number(r.tokens_per_second)},
          {"goodput", json_number(r.goodput)},
          {"memory_peak", json_number(r.memory_peak)},
          {"restarts", r.restarts},
          {"device", r.device},
          {"processes", r.processes},
          {"layout", r.layout},
          {"parameters", r.parameters},
          {"age", json_number(r.age)}};
}

void list(const ListArguments& a) {
  std::vector<RunSummary> runs = runs_below(a.folder);
  sort_by(a.sort, runs);
  if (a.json) {
    nlohmann::ordered_json all = nlohmann::ordered_json::array();
    for (const RunSummary& r : runs) all.push_back(json_of(r));
    std::cout << json_text(all, 1) << "\n";
  } else if (runs.empty()) {
    std::cout << escape_control_characters(a.folder) << ": contains no runs\n";
  } else {
    print(runs);
  }
}

}  // namespace

std::optional<double> ascending_key(std::optional<double> v) { return v && std::isnan(*v) ? std::nullopt : v; }

std::string loss_text(std::optional<double> v) { return v ? format_fixed(*v, 4) : kNone; }
std::string speed_text(std::optional<double> v) { return v ? format_count(*v) : kNone; }
std::string percent_text(std::optional<double> v) { return v ? percent(*v) : kNone; }
std::string memory_text(std::optional<double> v) { return v ? format_bytes(*v) : kNone; }

void add_runs_command(Command app) {
  const Command runs = app.add_subcommand("runs", "List the runs in a folder, or compare some: runs compare A B");
  auto a = std::make_shared<ListArguments>();
  runs.add_option("folder", a->folder, "folder with the runs, which may be in subfolders")
      .type_name("DIR")
      .show_default();
  runs.add_option("--sort", a->sort, "Sort by this: best, newest or furthest run first")
      .one_of(key_names())
      .show_default();
  runs.add_flag("--json", a->json, "Print one JSON array");
  runs.footer("Example: ringmaster runs --sort validation_loss");
  add_runs_compare(runs);
  runs.set_callback([a, runs] {
    if (runs.given_command() == runs) list(*a);
  });
}

}  // namespace ring
