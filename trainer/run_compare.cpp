#include "trainer/run_compare.h"

#include <algorithm>

#include "core/check.h"
#include "core/fields.h"
#include "core/yaml_leaves.h"
#include "engine/run_directory.h"
#include "trainer/records.h"

namespace ring {
namespace {

using Leaves = std::vector<std::pair<std::string, std::string>>;

bool is_own(const std::string& key) { return key == "run.name" || key == "run.directory"; }

std::string value_in(const std::map<std::string, std::string>& settings, const std::string& key) {
  if (settings.empty()) return kSettingsUnreadable;
  const auto at = settings.find(key);
  return at == settings.end() ? kSettingAbsent : at->second;
}

bool differs(const std::vector<std::string>& values) {
  std::vector<std::string> known = values;
  std::erase(known, kSettingsUnreadable);
  return std::ranges::adjacent_find(known, std::ranges::not_equal_to()) != known.end();
}

// Returns all keys, in the order of the files.
std::vector<std::string> keys_of(const std::vector<Leaves>& all) {
  std::vector<std::string> keys;
  std::map<std::string, bool> seen;
  for (const Leaves& leaves : all)
    for (const auto& [key, value] : leaves)
      if (!is_own(key) && seen.emplace(key, true).second) keys.push_back(key);
  return keys;
}

Leaves settings_of(const std::string& run, std::vector<std::string>* problems) {
  try {
    return yaml_leaves(to_yaml(RunDirectory(run).config()));
  } catch (const std::exception& e) {
    if (problems) problems->push_back(e.what());
  }
  return {};
}

}  // namespace

std::vector<DifferingSetting> differing_settings(const std::vector<std::string>& runs,
                                                 std::vector<std::string>* problems) {
  std::vector<Leaves> all;
  std::vector<std::map<std::string, std::string>> settings;
  for (const std::string& run : runs) {
    all.push_back(settings_of(run, problems));
    settings.emplace_back(all.back().begin(), all.back().end());
  }
  std::vector<DifferingSetting> out;
  for (const std::string& key : keys_of(all)) {
    DifferingSetting s{key, {}};
    for (const auto& of_run : settings) s.values.push_back(value_in(of_run, key));
    if (differs(s.values)) out.push_back(std::move(s));
  }
  return out;
}

RunCurves read_curves(const std::string& run) {
  RunCurves curves;
  const auto keep = [](const Record& r, const char* name, std::map<std::int64_t, double>& curve) {
    if (const auto value = r.number(name)) curve[r.step] = *value;
  };
  read_records(RunDirectory(run).metrics_file(), [&](const Record& r) {
    if (r.group == "validation") keep(r, "loss", curves.validation_loss);
    if (r.group != "train") return;
    keep(r, "loss", curves.loss);
    keep(r, "tokens_per_second", curves.tokens_per_second);
    keep(r, "step_ms", curves.step_ms);
    keep(r, "data_ms", curves.data_ms);
    keep(r, "memory_peak", curves.memory_peak);
  });
  return curves;
}

std::vector<std::int64_t> common_steps(const std::vector<const std::map<std::int64_t, double>*>& curves,
                                       std::size_t max) {
  std::vector<std::int64_t> all, some;
  if (curves.empty()) return all;
  for (const auto& [step, value] : *curves[0])
    if (std::ranges::all_of(curves, [step = step](const auto* c) { return c->contains(step); })) all.push_back(step);
  if (all.size() <= max) return all;
  for (std::size_t i = 1; i <= max; ++i) some.push_back(all[i * all.size() / max - 1]);
  return some;
}

}  // namespace ring
