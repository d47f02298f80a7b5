#include "checkpoint/reader.h"

#include <algorithm>
#include <atomic>
#include <exception>
#include <set>
#include <thread>
#include <utility>

#include "checkpoint/shard.h"
#include "core/log.h"
#include "core/signals.h"

namespace ring {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kReaders = 8;  // one thread hashes 2 GB/s, which is less than memory and disks deliver

// Reports a folder that was renamed by hand: a run would resume at the wrong step.
void check_name(const fs::path& checkpoint, const Manifest& manifest, std::vector<std::string>& problems) {
  const std::string name = checkpoint.filename().string();
  if (name.starts_with("step-") && name != checkpoint_name(manifest.step))
    problems.push_back(
        str((checkpoint / kManifestName).string(), " is of step ", manifest.step, ", but its folder is named ", name));
}

// Verifies up to kReaders files in parallel. Returns the problems in the order of the files.
std::vector<std::string> verify_files(const fs::path& checkpoint, Manifest& manifest, bool from_disk) {
  std::vector<std::string> problems;
  check_name(checkpoint, manifest, problems);
  std::map<std::string, std::vector<PlannedSlice>> slices = slices_by_file(manifest);
  for (const SavedFile& file : manifest.files) slices.try_emplace(file.name);
  std::vector<std::vector<std::string>> found(manifest.files.size());
  std::atomic<std::size_t> next{0};
  const auto read = [&] {
    for (std::size_t i = next++; i < found.size(); i = next++) try {
        const SavedFile& file = manifest.files[i];
        found[i] = verify_shard(checkpoint, file, slices.at(file.name), from_disk);
      } catch (const std::exception& e) {  // the file cannot be read
        found[i] = {e.what()};
      }
  };
  {
    const BlockSignals block;
    std::vector<std::jthread> readers;
    for (std::size_t i = 1; i < std::min(found.size(), kReaders); ++i) readers.emplace_back(read);
    read();
  }
  for (const std::vector<std::string>& of_file : found) problems.insert(problems.end(), of_file.begin(), of_file.end());
  return problems;
}

// Also reports it as a problem if the manifest cannot be read.
Verification verify_once(const fs::path& checkpoint, bool from_disk) {
  Verification v;
  try {
    v.manifest = read_manifest(checkpoint);
    v.problems = verify_files(checkpoint, v.manifest, from_disk);
  } catch (const std::exception& e) {
    v.problems = {e.what()};
  }
  return v;
}

void warn_of_impostors(const fs::path& folder) {
  for (const fs::path& path : list_foreign_files(folder))
    log::warn(path.string(), " is named like a checkpoint, but contains none of its files: it is left alone");
}

}  // namespace

std::vector<std::string> verify_checkpoint(const fs::path& checkpoint, bool from_disk) {
  return verify_once(checkpoint, from_disk).problems;
}

Verification verify_during_training(const fs::path& checkpoint, bool from_disk) {
  for (int attempt = 0; attempt < kMaxAttempts; ++attempt) {
    const FolderIdentity before = identity_of(checkpoint);
    Verification v = verify_once(checkpoint, from_disk);
    v.identity = before;
    if (v.problems.empty()) return v;
    const FolderIdentity after = identity_of(checkpoint);
    if (!after) return {.manifest = {}, .problems = {}, .removed = true, .identity = {}};
    if (before == after) return v;
  }
  fail_outpaced(checkpoint);
}

FoundCheckpoint resolve_newest(const fs::path& path_or_run) {
  const fs::path newest = resolve_checkpoints(path_or_run).back().path;
  return {newest, {}, identity_of(newest)};
}

void fail_outpaced(const fs::path& path) {
  fail(path.string(),
       ": checkpoints are removed and replaced faster than they can be read. Raise checkpoint.keep_last "
       "or checkpoint.interval of the run, or copy a checkpoint and use the copy");
}

std::optional<FoundCheckpoint> find_newest_verified(const fs::path& folder) {
  std::set<std::string> said;
  for (int attempt = 0; attempt < kMaxAttempts; ++attempt) {
    const std::vector<CheckpointEntry> all = list_checkpoints(folder);
    if (all.empty()) return warn_of_impostors(folder), std::nullopt;
    std::string newest_problem;
    bool removed = false;
    for (auto entry = all.rbegin(); entry != all.rend() && !removed; ++entry) {
      Verification v = verify_during_training(entry->path);
      removed = v.removed;
      if (!removed && v.problems.empty()) {
        if (!newest_problem.empty()) log::warn("using the checkpoint of step ", entry->step, " instead");
        return FoundCheckpoint{entry->path, std::move(v.manifest), v.identity};
      }
      for (const std::string& problem : v.problems) {
        if (newest_problem.empty()) newest_problem = problem;
        if (said.insert(problem).second) log::warn("checkpoint of step ", entry->step, " is damaged: ", problem);
      }
    }
    if (!removed)
      fail("no checkpoint in ", folder.string(), " is intact (", all.size(), " damaged, newest: ", newest_problem,
           "); move the folder away to start over");
  }
  fail_outpaced(folder);
}

FoundCheckpoint read_found(const std::function<FoundCheckpoint()>& find,
                           const std::function<void(FoundCheckpoint&)>& read) {
  fs::path gone;
  const auto find_next = [&] {
    try {
      return find();
    } catch (const std::exception& e) {
      if (gone.empty()) throw;
      fail(gone.string(),
           " was removed while it was read, as a run does with old checkpoints; the next attempt failed: ", e.what());
    }
  };
  for (int attempt = 0; attempt < kMaxAttempts; ++attempt) {
    FoundCheckpoint found = find_next();
    try {
      read(found);
      return found;
    } catch (const std::exception&) {
      if (found.still_there()) throw;
      gone = found.path;
    }
  }
  fail_outpaced(gone);
}

}  // namespace ring
