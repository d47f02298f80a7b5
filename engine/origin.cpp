#include "engine/origin.h"

#include <algorithm>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <sstream>

#include "core/fields.h"
#include "core/joined.h"
#include "core/json.h"
#include "core/log.h"
#include "data/load_tokenizer.h"
#include "data/token_store.h"
#include "engine/agreement.h"
#include "generated/build_info.h"
#include "kernels/tuning.h"

namespace ring {
namespace {

constexpr const char* kTokenizer = "tokenizer ";
constexpr const char* kBlocks = "file of blocks with hash ";
constexpr const char* kSeparator = "; ";
constexpr const char *kImported = "imported_from", *kConfig = "config";

// Returns true for threads and layouts, which only affect rounding and may differ on another machine.
bool rounds_otherwise(const std::string& change) {
  constexpr const char* kKeys[] = {
      "run.threads:",        "parallel.cp:",       "parallel.tp:",        "parallel.pp:",
      "parallel.pp_order:",  "parallel.pp_parts:", "parallel.pp_slices:", "parallel.pp_division",
      "parallel.cp_layout:", "parallel.cp_keys:",  "parallel.zero:",      "parallel.cp_ranks_per_node:",
      "parallel.cp_schedule:"};
  return std::ranges::any_of(kKeys, [&](const char* key) { return change.starts_with(key); });
}

bool of_a_name(const std::string& change) {
  return change.starts_with("data.mixture[") && change.find("].name: ") < change.find(": ");
}

std::vector<std::string> parts_of(const std::string& fingerprint) {
  std::vector<std::string> parts;
  for (std::size_t at = 0; at < fingerprint.size();) {
    const std::size_t end = std::min(fingerprint.find(kSeparator, at), fingerprint.size());
    parts.push_back(fingerprint.substr(at, end - at));
    at = end + std::string_view(kSeparator).size();
  }
  return parts;
}

std::string blocks_fingerprint(const ModelConfig& model) {
  std::string text;
  for (const std::uint64_t hash : block_file_hashes(model)) text += str(kSeparator, kBlocks, hash);
  return text;
}

std::string files_of_blocks(const ModelConfig& model) {
  std::set<std::string> files;
  const auto collect = [&](const AttentionConfig& attention) {
    for (const BlockRuleConfig& rule : attention.rules)
      if (!rule.file.empty()) files.insert(rule.file);
  };
  collect(model.attention);
  for (const LayerAttentionConfig& entry : model.attention_layers) collect(entry.attention);
  return joined({files.begin(), files.end()}, ", ");
}

std::string owner_of(const std::string& part, const ModelConfig& model) {
  if (part.starts_with(kTokenizer)) return "tokenizer of the corpora";
  if (!part.starts_with(kBlocks)) return "tokens of the corpora";
  const std::string files = files_of_blocks(model);
  return files.empty() ? "files of blocks" : "files of blocks (" + files + ")";
}

std::string text_of(const nlohmann::json& metadata, const char* key) {
  const auto found = metadata.find(key);
  return found != metadata.end() && found->is_string() ? found->get<std::string>() : "";
}

}  // namespace

std::string checkpoint_metadata(const Config& config, const MemoryRecord& memory, const Tuning* tuning) {
  const std::string text = to_yaml(config);
  nlohmann::json json = {{kConfig, text},
                         {"config_hash", hash_text(text)},
                         {"memory", parse_own_json<nlohmann::json>(to_json(memory))},
                         {"version", build_info::kVersion},
                         {"commit", build_info::kCommit}};
  if (tuning) json["choices"] = tuning->text();
  return json.dump();
}

std::string imported_metadata(const Config& config, const std::string& from) {
  nlohmann::json json = parse_own_json<nlohmann::json>(checkpoint_metadata(config, {}, nullptr));
  json.erase("memory");
  json[kImported] = from;
  return json_text(json);  // a path may contain invalid UTF-8
}

std::size_t adopt_kernel_choices(Tuning& tuning, const std::string& metadata) {
  const std::string choices = text_of(parse_own_json<nlohmann::json>(metadata), "choices");
  return choices.empty() ? 0 : tuning.merge_record(choices);
}

std::string data_fingerprint(const Corpora& corpora, const ModelConfig& model) {
  std::string text = kTokenizer + corpora.tokenizer_hash;
  for (const auto& store : corpora.stores) {
    text += str(kSeparator, store->train().tokens(), " tokens with hash ", store->train().tokens_hash());
    if (store->validation().tokens() > 0)
      text += str(kSeparator, store->validation().tokens(), " for validation with hash ",
                  store->validation().tokens_hash());
  }
  return text + blocks_fingerprint(model);
}

std::string tokenizer_fingerprint(const Tokenizer& tokenizer) { return kTokenizer + tokenizer.hash(); }

std::string Origin::tokenizer_hash() const {
  for (const std::string& part : parts_of(data))
    if (part.starts_with(kTokenizer)) return part.substr(std::string_view(kTokenizer).size());
  return "";
}

Config settings_in(const std::string& metadata, const std::string& checkpoint) {
  const std::string text = text_of(parse_own_json<nlohmann::json>(metadata), kConfig);
  if (text.empty()) fail(checkpoint, ": contains no settings, so it was not saved by a run of this program");
  Config config;
  load_config_text(config, text, "settings in " + checkpoint);
  return config;
}

Origin origin_of(const FoundCheckpoint& found) {
  Origin origin;
  origin.checkpoint = found.path.string();
  origin.config = settings_in(found.manifest.metadata, origin.checkpoint);
  const auto metadata = parse_own_json<nlohmann::json>(found.manifest.metadata);
  origin.config_hash = std::to_string(hash_text(text_of(metadata, kConfig)));
  origin.imported = text_of(metadata, kImported);
  if (metadata.contains("memory")) origin.memory = metadata["memory"].dump();
  if (const auto value = found.manifest.values.find(kFingerprintName); value != found.manifest.values.end())
    if (const auto* data = std::get_if<std::string>(&value->second)) origin.data = *data;
  return origin;
}

void refuse_imported(const RunDirectory& run, const Origin& origin) {
  if (origin.imported.empty()) return;
  fail(run.path(), " holds weights imported from ", origin.imported,
       ", not training that can be resumed. To train from them, start a new run: run.init_from=", run.path(),
       ", with the settings in ", run.path(), "/", kModelFile);
}

std::vector<std::string> changes_of_results(const Config& old_config, const Config& new_config) {
  std::vector<std::string> changes = diff_configs(old_config, new_config, keys_free_to_change());
  std::erase_if(changes, rounds_otherwise);
  std::erase_if(changes, of_a_name);
  return changes;
}

std::vector<std::string> changes_of_rounding(const Config& old_config, const Config& new_config) {
  std::vector<std::string> changes = diff_configs(old_config, new_config);
  std::erase_if(changes, [](const std::string& change) { return !rounds_otherwise(change); });
  return changes;
}

std::shared_ptr<const Tokenizer> load_tokenizer_of(const Origin& origin, const std::string& file) {
  try {
    return load_tokenizer(file, origin.tokenizer_hash(), "checkpoint " + origin.checkpoint);
  } catch (const Error& e) {
    fail(e.what(), ". Resume the run (ringmaster train) to restore the right one from the corpus");
  }
}

void check_blocks(const Origin& origin) {
  std::string wanted;
  for (const std::string& part : parts_of(origin.data))
    if (part.starts_with(kBlocks)) wanted += kSeparator + part;
  if (const std::string here = blocks_fingerprint(origin.config.model); !origin.data.empty() && here != wanted)
    fail("the block files in model.attention differ from those of the checkpoint ", origin.checkpoint, ": got ",
         here.empty() ? "none" : here.substr(2), ", expected ", wanted.empty() ? "none" : wanted.substr(2),
         ". Restore the original files");
}

std::vector<std::string> changes_of_data(const Origin& origin, const std::string& here, const ModelConfig& model) {
  if (origin.data.empty() || here == origin.data) return {};
  struct Parts {
    std::vector<std::string> there, here;
  };
  std::map<std::string, Parts> by_owner;
  for (const std::string& part : parts_of(origin.data)) by_owner[owner_of(part, model)].there.push_back(part);
  for (const std::string& part : parts_of(here)) by_owner[owner_of(part, model)].here.push_back(part);
  const auto text = [](const std::vector<std::string>& parts) { return parts.empty() ? "none" : joined(parts, ", "); };
  std::vector<std::string> changes;
  for (const auto& [owner, parts] : by_owner)
    if (parts.there != parts.here) changes.push_back(str(owner, ": ", text(parts.there), " -> ", text(parts.here)));
  return changes;
}

void check_data(const Origin& origin, const Corpora& corpora, const std::string& remedy) {
  const ModelConfig& model = origin.config.model;
  const std::vector<std::string> changes = changes_of_data(origin, data_fingerprint(corpora, model), model);
  if (!changes.empty())
    fail("the checkpoint ", origin.checkpoint, " was trained on different data from the data found now:\n  ",
         joined(changes, "\n  "), "\n", remedy);
}

std::optional<Origin> newest_origin(const RunDirectory& run, std::string* problem) {
  const std::vector<CheckpointEntry> all = list_checkpoints(run.checkpoints());
  for (auto entry = all.rbegin(); entry != all.rend(); ++entry) try {
      return origin_of({entry->path, read_manifest(entry->path), {}});
    } catch (const Error& e) {
      if (problem && problem->empty()) *problem = e.what();
    }
  return std::nullopt;
}

std::shared_ptr<const Tokenizer> open_tokenizer(const std::string& spec) {
  namespace fs = std::filesystem;
  std::error_code error;
  const bool folder = fs::is_directory(spec, error);
  const std::optional<RunDirectory> run = folder || fs::path(spec).filename() == "tokenizer.rmt"
                                              ? run_containing(folder ? spec : fs::path(spec).parent_path().string())
                                              : std::nullopt;
  if (!run) return load_tokenizer(spec);
  const std::string file = folder ? run->tokenizer_file() : spec;
  const std::optional<Origin> origin = newest_origin(*run);
  return origin ? load_tokenizer_of(*origin, file) : load_tokenizer(file);
}

RunSettings settings_in_file(const RunDirectory& run, bool warn) {
  RunSettings settings = run.settings();
  const std::string restoring = settings.untouched ? "" : run.restoring_command();
  if (warn && !restoring.empty())
    log::warn(run.config_file(), " was changed after the run wrote it. To restore it: ", restoring);
  return settings;
}

bool may_replace_settings(const RunSettings& file, const Origin& origin) {
  return std::ranges::count(file.replaced, origin.config_hash) > 0;
}

Config settings_to_go_on(const RunDirectory& run, bool warn) {
  if (run.has_config()) return settings_in_file(run, warn).config;
  std::string problem;
  if (const std::optional<Origin> origin = newest_origin(run, &problem)) {
    if (warn) log::warn(run.path(), " has checkpoints but no config.yaml. Using the settings in ", origin->checkpoint);
    return origin->config;
  }
  if (problem.empty()) return run.settings().config;  // throws Error, which says that this is not a run
  fail(run.path(), " has no config.yaml, and none of its checkpoints has readable settings: ", problem);
}

std::optional<Config> settings_of_resumed(const Config& c, bool fresh) {
  const RunDirectory run(c.run.path());
  if (fresh || !run.exists()) return {};
  return settings_to_go_on(run, false);
}

}  // namespace ring
