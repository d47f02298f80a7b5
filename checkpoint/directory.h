#pragma once
// The folder of a run's checkpoints. Each checkpoint is a folder step-000000123, which is named
// step-000000123.tmp-<attempt> while it is being written or removed.

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

// The folder may contain other files and folders, which are never removed: entries with other names are ignored, and a
// folder with a checkpoint's name but neither a manifest nor a shard is not a checkpoint.

// Returns the committed checkpoints, verified or not, sorted by step; empty if the folder does not exist. Includes
// checkpoints without read permission. Throws Error if the folder itself cannot be read.
std::vector<CheckpointEntry> list_checkpoints(const std::filesystem::path& folder);
// Returns the files and folders that are named like a checkpoint but are not one, sorted by path.
std::vector<std::filesystem::path> list_foreign_files(const std::filesystem::path& folder);

// Removes what unfinished saves and removals left behind, and returns how many entries were removed; a failure is
// logged as a warning. Call on one rank, before anything is written to the folder.
int remove_stale_entries(const std::filesystem::path& folder);

// Renames the checkpoint before removing it, so that a crash during the removal leaves no damaged checkpoint behind.
std::error_code remove_checkpoint(const std::filesystem::path& checkpoint);
// Removes every checkpoint and stale folder. Throws Error if a checkpoint cannot be removed.
void remove_all_checkpoints(const std::filesystem::path& folder);

// Device and inode number of the folder at a path; nullopt if there is none. The identity changes when the folder is
// removed or replaced.
using FolderIdentity = std::optional<std::pair<std::uint64_t, std::uint64_t>>;
FolderIdentity identity_of(const std::filesystem::path&);

// Renames the finished folder `temporary` to `final` and makes the rename durable. If there is a checkpoint named
// `final`, the names are exchanged atomically: the old checkpoint is then named `temporary`, and the caller removes it.
// If the file system cannot exchange names, the old checkpoint is removed first. Anything else named `final` is moved
// out of the way by a rename, with a warning.
void commit_directory(const std::filesystem::path& temporary, const std::filesystem::path& final);

struct Retention {
  int keep_last = 2;                    // number of newest checkpoints to keep, at least 1
  std::int64_t keep_every = 0;          // checkpoints at multiples of this step are never removed; 0 keeps none
  std::vector<std::int64_t> damaged{};  // steps of damaged checkpoints, which are neither removed nor counted
};

// Returns the checkpoints older than `step` that retention removes: all except the newest keep_last (which include the
// checkpoint of `step`) and those at multiples of keep_every. Checkpoints newer than `step` are ignored.
std::vector<CheckpointEntry> list_superseded(const std::filesystem::path& folder, std::int64_t step, const Retention&);
// Removes the checkpoints of list_superseded(). Call after the checkpoint of `step` was verified. Warns if one cannot
// be removed.
void apply_retention(const std::filesystem::path& folder, std::int64_t step, const Retention&);

// Returns the checkpoint at a path, or all checkpoints of the run (or folder of checkpoints) at that path, sorted by
// step. Never empty: if there is none, throws Error, which says what was searched for.
std::vector<CheckpointEntry> resolve_checkpoints(const std::filesystem::path& path_or_run);

}  // namespace ring
