#include "cli/settings.h"

#include <algorithm>
#include <array>
#include <filesystem>
#include <string_view>

#include "cli/synonyms.h"
#include "core/fields.h"
#include "core/files.h"
#include "data/token_format.h"
#include "engine/origin.h"
#include "evaluate/session.h"

namespace ring {
namespace {

bool is_folder(const std::string& path) {
  std::error_code none;
  return std::filesystem::is_directory(path, none);
}

// Throws Error if the path is a corpus, which users often give instead of settings. Corpora of other programs are
// recognized by HDF5's signature.
void refuse_corpus(const std::string& path) {
  constexpr std::string_view kHdf5 = "\x89HDF\r\n\x1a\n";
  std::error_code error;
  if (!std::filesystem::is_regular_file(path, error)) return;
  std::string begin(64, '\0');
  open_input(path).read(begin.data(), begin.size());
  if (begin.starts_with(kCorpusMagic) || begin.starts_with(kHdf5))
    fail(path,
         ": expected settings (YAML), got a corpus (HDF5). Give it as data.path together with a settings file: "
         "ringmaster train configs/nanogpt_cpu.yaml data.path=",
         path);
}

void refuse_toml(const std::string& path) {
  if (path.ends_with(".toml"))
    fail(path,
         ": expected settings in YAML, got TOML. Write a table's name, such as [train], as `train:`, and a line "
         "`key = value` below it as an indented `key: value`. To write a file to start from: ringmaster init my.yaml");
}

// Returns the overrides, preceded by zeros for the other units if they give the run's length in one unit, because the
// settings file may give it in another.
std::vector<std::string> with_one_length(std::vector<std::string> overrides) {
  const std::array<std::string, 3> units{"train.steps=", "train.tokens=", "train.epochs="};
  std::vector<std::string> zeros;
  for (const std::string& unit : units) {
    const auto gives = [&](const std::string& o) { return o.starts_with(unit) && o != unit + "0"; };
    if (std::ranges::none_of(overrides, gives)) zeros.push_back(unit + "0");
  }
  if (zeros.size() == units.size() - 1) overrides.insert(overrides.begin(), zeros.begin(), zeros.end());
  return overrides;
}

Config settings_in(const std::string& file, const std::vector<std::string>& overrides) {
  check_exists(file, "settings, such as configs/nanogpt_cpu.yaml, or a run");
  refuse_corpus(file);
  refuse_toml(file);
  Config config;
  load_config(config, file, with_one_length(overrides), config_aliases());
  return config;
}

// Returns true for SECTION.KEY=.. and for SECTION={.., KEY: ..}.
bool sets_key(const std::string& setting, const std::string& section, const std::string& key) {
  if (setting.starts_with(str(section, '.', key, '='))) return true;
  return setting.starts_with(str(section, "={")) && std::ranges::any_of(std::string_view("{, "), [&](char before) {
           return setting.find(str(before, key, ':')) != std::string::npos;
         });
}

// Returns the settings with the overrides. Keys that `auto` chose count as given if the command line names them.
Config changed(Config config, const std::vector<std::string>& overrides) {
  override_config(config, with_one_length(overrides), config_aliases());
  std::erase_if(config.parallel.chosen, [&](const std::string& key) {
    return std::ranges::any_of(
        overrides, [&](const std::string& o) { return sets_key(o, key == "offload" ? "optimizer" : "parallel", key); });
  });
  return config;
}

}  // namespace

Config load_settings(const std::string& path, const std::vector<std::string>& overrides) {
  if (!is_folder(path)) return settings_in(path, overrides);
  const RunDirectory run(path);
  return changed(run.exists() ? settings_to_go_on(run, true) : origin_of(find_checkpoint(path)).config, overrides);
}

Config settings_to_train(const std::string& path, const std::vector<std::string>& overrides, bool warn) {
  if (!is_folder(path)) return settings_in(path, overrides);
  const RunDirectory run(path);
  if (!run.exists()) {
    const std::string around = find_run(path).path();
    fail(path, " is part of the run ", around, ". To resume that run: ringmaster train ", around,
         ". To start another run from these weights, give its settings and run.init_from=", path);
  }
  if (const std::optional<Origin> origin = newest_origin(run)) refuse_imported(run, *origin);
  Config config = settings_to_go_on(run, warn);
  config.run.directory = run.path();
  return changed(std::move(config), overrides);
}

}  // namespace ring
