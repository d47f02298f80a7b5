#pragma once
// The folder of a run's checkpoints. Each checkpoint is a folder step-000000123; while it is being written or removed,
// its name is step-000000123.tmp-<attempt>.

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

namespace ring {

struct CheckpointEntry {
  std::int64_t step = 0;
  std::filesystem::path path;
};

std::string checkpoint_name(std::int64_t step);

// The folder may contain other files and folders, which are never removed: a different name is ignored, and a folder
// with such a name but neither a manifest nor a shard is not a checkpoint.

// Returns the committed checkpoints, verified or not, by ascending step; none if the folder does not exist. A
// checkpoint without read permission is included. Throws Error if the folder itself cannot be read.
std::vector<CheckpointEntry> list_checkpoints(const std::filesystem::path& folder);
// Returns the files and folders that are named like a checkpoint but are not one, sorted by path.
std::vector<std::filesystem::path> list_foreign_files(const std::filesystem::path& folder);

// Removes what unfinished saves and removals left behind. Call on one rank, before anything is written to the folder.
// Returns how many were removed; a failure is logged as a warning.
int remove_stale(const std::filesystem::path& folder);

// Renames the checkpoint before removing it, so that a crash halfway leaves no damaged checkpoint behind.
std::error_code remove_checkpoint(const std::filesystem::path& checkpoint);
// Removes every checkpoint and stale folder. Throws Error if a checkpoint cannot be removed.
void remove_all_checkpoints(const std::filesystem::path& folder);

// Device and inode number of the folder at a path; nullopt if there is none. The identity changes when the folder is
// removed or replaced.
using FolderIdentity = std::optional<std::pair<std::uint64_t, std::uint64_t>>;
FolderIdentity identity_of(const std::filesystem::path&);

// Renames the finished folder `temporary` to `final` and makes the rename durable. A checkpoint already named `final`
// is exchanged atomically: it is then named `temporary`, and the caller removes it. If the file system cannot exchange
// names, the old checkpoint is removed first. Anything else named `final` is renamed out of the way, with a warning.
void commit_directory(const std::filesystem::path& temporary, const std::filesystem::path& final);

struct Retention {
  int keep_last = 2;                    // newest checkpoints to keep, at least 1
  std::int64_t keep_every = 0;          // checkpoints at multiples of this step are never removed; 0 disables it
  std::vector<std::int64_t> damaged{};  // steps of damaged checkpoints, which are neither removed nor counted
};

// Returns the checkpoints older than `step` that retention removes: all except the newest keep_last (which include that
// of `step`) and every keep_every-th. Checkpoints newer than `step` are ignored.
std::vector<CheckpointEntry> list_superseded(const std::filesystem::path& folder, std::int64_t step, const Retention&);
// Removes the list_superseded() checkpoints. Call after the checkpoint of `step` was verified. Warns if one cannot be
// removed.
void apply_retention(const std::filesystem::path& folder, std::int64_t step, const Retention&);

// Returns the checkpoint at a path, or all checkpoints of the run (or folder of checkpoints) at that path, by ascending
// step. Never empty: throws Error, which says what was looked for, if there is none.
std::vector<CheckpointEntry> resolve_checkpoints(const std::filesystem::path& path_or_run);

}  // namespace ring
