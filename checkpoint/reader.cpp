#include "checkpoint/reader.h"

#include <exception>

#include "checkpoint/shard.h"
#include "core/log.h"

namespace ring {
namespace {

namespace fs = std::filesystem;

// A folder that was renamed by hand would be resumed at the wrong place.
void check_name(const fs::path& checkpoint, const Manifest& manifest, std::vector<std::string>& problems) {
  const std::string name = checkpoint.filename().string();
  if (name.starts_with("step-") && name != checkpoint_name(manifest.step))
    problems.push_back(
        str((checkpoint / kManifestName).string(), " is of step ", manifest.step, ", its folder is named ", name));
}

std::vector<std::string> verify_files(const fs::path& checkpoint, Manifest& manifest, bool from_disk) {
  std::vector<std::string> problems;
  check_name(checkpoint, manifest, problems);
  for (const SavedFile& file : manifest.files) {
    const auto found = verify_shard(checkpoint, file, slices_of(manifest, file.name), from_disk);
    problems.insert(problems.end(), found.begin(), found.end());
  }
  return problems;
}

std::vector<std::string> verify_into(const fs::path& checkpoint, bool from_disk, Manifest& manifest) {
  try {
    manifest = read_manifest(checkpoint);
    return verify_files(checkpoint, manifest, from_disk);
  } catch (const std::exception& e) {  // unreadable files too
    return {e.what()};
  }
}

}  // namespace

std::vector<std::string> verify_checkpoint(const fs::path& checkpoint, bool from_disk) {
  Manifest manifest;
  return verify_into(checkpoint, from_disk, manifest);
}

std::optional<FoundCheckpoint> find_newest_verified(const fs::path& folder) {
  const std::vector<CheckpointEntry> all = list_checkpoints(folder);
  for (auto entry = all.rbegin(); entry != all.rend(); ++entry) {
    FoundCheckpoint found{entry->path, {}};
    const std::vector<std::string> problems = verify_into(entry->path, false, found.manifest);
    if (problems.empty()) return found;
    for (const std::string& problem : problems) log::warn("checkpoint of step ", entry->step, " is damaged: ", problem);
  }
  if (all.empty()) return std::nullopt;
  fail("no checkpoint in ", folder.string(), " is sound (", all.size(),
       " damaged, newest: ", verify_checkpoint(all.back().path).front(), "); move the folder away to start again");
}

}  // namespace ring
