#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <iomanip>
#include <iostream>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>
#include <string>

#include "checkpoint/reader.h"
#include "cli/command.h"
#include "cli/commands.h"
#include "core/json.h"

namespace ring {
namespace {

namespace fs = std::filesystem;

std::string human(std::uint64_t bytes) {
  constexpr const char* units[] = {"B", "KiB", "MiB", "GiB", "TiB"};
  double value = static_cast<double>(bytes);
  int unit = 0;
  for (; value >= 1024 && unit < 4; ++unit) value /= 1024;
  char text[32];
  std::snprintf(text, sizeof text, unit == 0 ? "%.0f %s" : "%.1f %s", value, units[unit]);
  return text;
}

std::uint64_t bytes_of(const SavedTensor& t) {
  std::uint64_t total = 0;
  for (const SavedSlice& s : t.slices) total += s.bytes;
  return total;
}

void print_value(const std::string& name, const StateValue& value) {
  std::cout << "  " << name << " = ";
  std::visit([](const auto& v) { std::cout << v; }, value);
  std::cout << "\n";
}

// Formats JSON, with one member per line if a single line would be too long; lists of scalars stay on one line.
std::string in_lines(const nlohmann::json& value, const std::string& indent) {
  constexpr std::size_t kColumns = 100;
  const std::string line = value.dump();
  const auto holds = [](const nlohmann::json& item) { return item.is_structured(); };
  const bool flat = value.is_array() && std::none_of(value.begin(), value.end(), holds);
  if (!value.is_structured() || flat || indent.size() + line.size() <= kColumns) return line;
  std::string items;
  for (const auto& [key, item] : value.items())
    items += str(items.empty() ? "" : ",", "\n", indent, "  ",
                 value.is_object() ? nlohmann::json(key).dump() + ": " : "", in_lines(item, indent + "  "));
  return str(line.front(), items, "\n", indent, line.back());
}

// Prints metadata. Values with several lines, such as the configuration, keep their line breaks.
void print_metadata(const std::string& metadata) {
  const nlohmann::json entries = parse_own_json<nlohmann::json>(metadata);
  for (const auto& [key, value] : entries.items()) {
    const std::string text = value.is_string() ? value.get<std::string>() : in_lines(value, "");
    std::cout << key << ": ";
    if (text.find('\n') == std::string::npos) {
      std::cout << text << "\n";
      continue;
    }
    std::istringstream lines(text);
    std::cout << "\n";
    for (std::string line; std::getline(lines, line);) std::cout << "  " << line << "\n";
  }
}

void print_tensors(const Manifest& m) {
  std::size_t width = 0;
  for (const auto& [name, t] : m.tensors) width = std::max(width, name.size());
  std::int64_t elements = 0;
  for (const auto& [name, t] : m.tensors) {
    elements += t.global_shape.numel();
    std::cout << "  " << std::left << std::setw(static_cast<int>(width)) << name << "  " << str(t.dtype, t.global_shape)
              << "  " << human(bytes_of(t));
    if (t.slices.size() > 1) std::cout << " in " << t.slices.size() << " slices";
    std::cout << "\n";
  }
  std::cout << "total: " << m.tensors.size() << " tensors, " << elements << " elements, " << human(m.tensor_bytes())
            << "\n";
}

// Returns the manifest of the newest checkpoint that `path` names; sets `found` to all checkpoints. Searches again if a
// run removes the checkpoint in the meantime.
Manifest read_newest(const std::string& path, std::vector<CheckpointEntry>& found) {
  const auto find = [&] {
    found = resolve_checkpoints(path);
    return FoundCheckpoint{found.back().path, {}, identity_of(found.back().path)};
  };
  return read_found(find, [](FoundCheckpoint& f) { f.manifest = read_manifest(f.path); }).manifest;
}

void print_manifest(const Manifest& m) {
  std::cout << "step " << m.step << ", written by " << m.world << (m.world == 1 ? " rank" : " ranks");
  if (m.token) std::cout << ", writer's token " << m.token;
  std::cout << "\nfiles:\n";
  for (const SavedFile& f : m.files)
    std::cout << "  " << f.name << "  " << human(f.bytes) << "  xxh3 " << f.xxh3 << "\n";
  print_metadata(m.metadata);
  if (!m.values.empty()) std::cout << "values:\n";
  for (const auto& [name, value] : m.values) print_value(name, value);
  std::cout << "tensors:\n";
  print_tensors(m);
}

void inspect(const std::string& path) {
  std::vector<CheckpointEntry> found;
  const Manifest m = read_newest(path, found);
  std::cout << found.back().path.string() << "\n";
  if (found.size() > 1) {
    std::cout << "newest of " << found.size() << " checkpoints; other steps:";
    for (std::size_t i = 0; i + 1 < found.size(); ++i) std::cout << (i ? ", " : " ") << found[i].step;
    std::cout << "\n";
  }
  print_manifest(m);
}

// Results of `verify` so far.
struct Tally {
  std::set<fs::path> seen;
  std::size_t whole = 0, damaged = 0;
  bool removed = false;  // true if a checkpoint in the current list was removed

  void look_at(const fs::path& path) {
    const Verification v = verify_during_training(path, /*from_disk=*/true);
    seen.insert(path);
    removed |= v.removed;
    damaged += !v.problems.empty();
    whole += v.problems.empty() && !v.removed;
    if (v.removed)
      std::cout << "removed  " << path.string() << "  by the run meanwhile, as it does with old checkpoints\n";
    else if (v.problems.empty())
      std::cout << "ok       " << path.string() << "  " << human(v.manifest.tensor_bytes()) << "\n";
    else
      std::cout << "damaged  " << path.string() << "\n";
    for (const std::string& problem : v.problems) std::cout << "         " << problem << "\n";
    std::cout << std::flush;
  }
};

// Verifies the checkpoints. If a run removes some of them in the meantime, lists them again to verify the newer ones.
void verify(const std::string& path) {
  Tally tally;
  const fs::path given = fs::path(path).has_filename() ? fs::path(path) : fs::path(path).parent_path();
  for (int attempt = 0; attempt < kMaxAttempts; ++attempt) {
    tally.removed = false;
    const std::vector<CheckpointEntry> found = resolve_checkpoints(path);
    for (const CheckpointEntry& entry : found)
      if (!tally.seen.contains(entry.path)) tally.look_at(entry.path);
    if (tally.removed && found.back().path == given)
      fail(path, " was removed while it was read. A run does that with old checkpoints; give a newer one");
    if (!tally.removed || tally.whole + tally.damaged > 0) break;
  }
  if (tally.whole + tally.damaged == 0) fail_outpaced(path);
  if (tally.damaged > 0)
    fail(tally.damaged, " of ", tally.whole + tally.damaged,
         tally.whole + tally.damaged == 1 ? " checkpoint is damaged" : " checkpoints are damaged");
}

}  // namespace

void add_checkpoint_commands(Command app) {
  const Command checkpoint = app.add_subcommand("checkpoint", "Inspect, verify, diff, reshard and prune checkpoints");
  checkpoint.require_subcommand();
  const auto add = [&](const char* name, const char* what, void (*act)(const std::string&)) {
    const Command command = checkpoint.add_subcommand(name, what);
    std::string& path = command.runs(act);
    command.add_option("path", path, "a checkpoint, or the directory of a run").required().type_name("PATH|RUN");
  };
  add("inspect", "Print step, layout, values and tensors of a checkpoint (of a run: its newest)", inspect);
  add("verify", "Read every byte, compare hashes and print damaged parts; exit code 1 if there are any", verify);
  add_checkpoint_tools(checkpoint);
}

}  // namespace ring
