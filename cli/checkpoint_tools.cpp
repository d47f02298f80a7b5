#include <array>
#include <filesystem>
#include <functional>
#include <iostream>
#include <limits>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "checkpoint/compare.h"
#include "checkpoint/prune.h"
#include "checkpoint/reader.h"
#include "checkpoint/reshard.h"
#include "cli/command.h"
#include "cli/commands.h"
#include "core/counted.h"
#include "core/exit_code.h"
#include "core/fields.h"
#include "core/json.h"
#include "engine/run_directory.h"

namespace ring {
namespace {

namespace fs = std::filesystem;

constexpr int kMaxRanks = 100'000;  // file names of shards have five digits
constexpr std::int64_t kMaxSteps = std::numeric_limits<std::int64_t>::max();

struct ReshardArguments {
  std::string path, output;
  int ranks = 1;
};

void reshard(const ReshardArguments& a) {
  const Resharded done = reshard_newest(a.path, a.output, a.ranks);
  std::cout << done.from.string() << " -> " << done.to.string() << ", " << counted(a.ranks, "rank")
            << ": all tensors are bit-identical\n";
}

struct PruneArguments {
  std::string path;
  int keep_last = 0;
  std::int64_t keep_every = 0;
  std::vector<std::int64_t> steps;
  bool dry_run = false;
};

PruneRules rules_of(const PruneArguments& a) {
  if (a.keep_last == 0 && a.steps.empty())
    fail(a.keep_every ? "--keep-every works only with --keep-last" : "expected checkpoints to remove, got none",
         ". Give --keep-last N (and --keep-every M), or --steps");
  PruneRules rules{std::nullopt, a.steps};
  if (a.keep_last > 0) rules.keep = Retention{a.keep_last, a.keep_every};
  return rules;
}

// Returns the folder of a run's checkpoints; `path` may already be that folder.
fs::path folder_of(const std::string& path) {
  const fs::path newest = resolve_checkpoints(path).back().path;
  std::error_code error;
  if (fs::equivalent(newest, path, error))
    fail(path, ": expected a run, got a single checkpoint. Give its run, and its step with --steps");
  return newest.parent_path();
}

void prune(const PruneArguments& a) {
  const PruneRules rules = rules_of(a);
  const fs::path folder = folder_of(a.path);
  const std::optional<RunDirectory> run = run_containing(folder.string());
  std::shared_ptr<void> lock;
  if (run && !a.dry_run) lock = run->lock();
  const PrunePlan plan = plan_prune(folder, rules);
  if (!a.dry_run) remove_planned(plan);
  for (const CheckpointEntry& e : plan.removed)
    std::cout << (a.dry_run ? "would remove  " : "removed  ") << e.path.string() << "\n";
  for (const CheckpointEntry& e : plan.kept)
    std::cout << "kept     " << e.path.string() << (e.step == plan.newest_complete ? "  (newest whole one)" : "")
              << "\n";
}

// Returns the settings in a checkpoint's metadata, and removes them from `metadata`.
std::string settings_in(nlohmann::json& metadata) {
  const auto config = metadata.find("config");
  if (config == metadata.end() || !config->is_string()) return "";
  const std::string text = config->get<std::string>();
  metadata.erase("config");
  metadata.erase("config_hash");
  return text;
}

std::vector<std::string> metadata_differences(const Manifest& a, const Manifest& b) {
  nlohmann::json one = parse_own_json<nlohmann::json>(a.metadata), other = parse_own_json<nlohmann::json>(b.metadata);
  std::vector<std::string> all = diff_yaml(settings_in(one), settings_in(other));
  for (auto& change : all) change = "settings: " + change;
  for (const auto& [key, value] : one.items())
    if (!other.contains(key) || other.at(key) != value) all.push_back(key + " differs");
  for (const auto& [key, value] : other.items())
    if (!one.contains(key)) all.push_back(key + " differs");
  if (a.world != b.world) all.push_back(str("ranks: ", a.world, " -> ", b.world));
  return all;
}

void print(const TensorDifference& d) {
  std::cout << "tensor " << d.name << ": ";
  if (!d.kind.empty())
    std::cout << d.kind << "\n";
  else
    std::cout << counted(d.elements, "element") << (d.elements == 1 ? " differs" : " differ") << ", by at most "
              << d.largest << "\n";
}

// Calls `read` with a checkpoint and its manifest, and again with the newest checkpoint if a run has removed it
// meanwhile.
void with_checkpoint(const std::string& path, const std::function<void(const FoundCheckpoint&)>& read) {
  read_found([&] { return resolve_newest(path); },
             [&](FoundCheckpoint& f) {
               f.manifest = read_manifest(f.path);
               read(f);
             });
}

struct DiffArguments {
  std::string first, second;
  bool only_tensors = false;
};

// Like diff(1), ends with exit code 1 if there are differences.
void diff(const DiffArguments& args) {
  CheckpointDifference d;
  std::vector<std::string> settings;
  std::array<std::size_t, 2> tensors{};
  with_checkpoint(args.first, [&](const FoundCheckpoint& a) {
    with_checkpoint(args.second, [&](const FoundCheckpoint& b) {
      d = compare_checkpoints(a.path, a.manifest, b.path, b.manifest);
      settings = metadata_differences(a.manifest, b.manifest);
      tensors = {a.manifest.tensors.size(), b.manifest.tensors.size()};
    });
  });
  if (args.only_tensors) settings.clear(), d.values.clear();
  for (const std::string& line : settings) std::cout << line << "\n";
  for (const std::string& line : d.values) std::cout << "value " << line << "\n";
  for (const TensorDifference& t : d.tensors) print(t);
  std::cout << counted(static_cast<std::int64_t>(d.tensors.size()), "tensor");
  if (tensors[0] == tensors[1]) std::cout << " of " << tensors[0];
  std::cout << (d.tensors.size() == 1 ? " differs" : " differ");
  if (tensors[0] != tensors[1])
    std::cout << "; the first checkpoint has " << tensors[0] << ", the second " << tensors[1];
  std::cout << "\n";
  if (!settings.empty() || !d.none()) throw ExitCode{kExitError};
}

void add_path(Command command, std::string& path) {
  command.add_option("path", path, "a checkpoint, or the directory of a run (then its newest checkpoint)")
      .required()
      .type_name("PATH|RUN");
}

void add_reshard(Command checkpoint) {
  const Command c = checkpoint.add_subcommand("reshard", "Write a checkpoint again with another number of shards");
  ReshardArguments& a = c.runs(reshard);
  add_path(c, a.path);
  c.add_option("--output", a.output, "Folder for the new checkpoint, which is named step-N")
      .required()
      .type_name("FOLDER");
  c.add_number("--ranks", a.ranks, "Shards to write", 1, kMaxRanks).required();
}

void add_prune(Command checkpoint) {
  const Command c = checkpoint.add_subcommand("prune", "Remove old checkpoints, but never the newest whole one");
  PruneArguments& a = c.runs(prune);
  c.add_option("run", a.path, "the directory of a run, or a folder of checkpoints").required().type_name("RUN");
  c.add_number("--keep-last", a.keep_last, "Keep this many of the newest checkpoints", 1, 1'000'000);
  c.add_number("--keep-every", a.keep_every, "Also keep checkpoints of steps that are multiples of this", 1, kMaxSteps);
  c.add_number("--steps", a.steps, "Remove the checkpoints of these steps, with commas", 0, kMaxSteps);
  c.add_flag("--dry-run", a.dry_run, "Only print which checkpoints would be removed");
}

void add_diff(Command checkpoint) {
  const Command c = checkpoint.add_subcommand("diff", "Compare two checkpoints; exit code 1 if they differ");
  DiffArguments& a = c.runs(diff);
  add_path(c, a.first);
  c.add_option("other", a.second, "the other checkpoint or run").required().type_name("PATH|RUN");
  c.add_flag("--tensors", a.only_tensors, "Compare only weights and other tensors, not settings and counters");
}

}  // namespace

void add_checkpoint_tools(Command checkpoint) {
  add_reshard(checkpoint);
  add_prune(checkpoint);
  add_diff(checkpoint);
}

}  // namespace ring
