#pragma once
// The folder of a run's checkpoints: step-000000123 for each, step-000000123.tmp-<attempt> while one is being written
// or removed.

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

// Other things may lie in the folder: what does not have such a name is not looked at, and what has it and holds
// neither a manifest nor a shard is no checkpoint. None of them is ever removed.

// Committed ones by ascending step, verified or not; nothing when there is no such folder. A folder that may not be
// read counts. Error: the folder itself cannot be read.
std::vector<CheckpointEntry> list_checkpoints(const std::filesystem::path& folder);
// Files and folders that are named like a checkpoint and are none.
std::vector<std::filesystem::path> list_impostors(const std::filesystem::path& folder);

// Removes what dead attempts left behind. Call on one rank, before anything writes there.
// Returns how many were removed.
int remove_stale(const std::filesystem::path& folder);

// Under another name first, so that a crash half-way leaves no damaged checkpoint behind.
std::error_code remove_checkpoint(const std::filesystem::path& checkpoint);
// Removes every checkpoint. Error: one of them cannot be removed.
void remove_all_checkpoints(const std::filesystem::path& folder);

// Which folder a path means now: two answers differ when it was removed or replaced in between. Nothing: there is none.
using FolderIdentity = std::optional<std::pair<std::uint64_t, std::uint64_t>>;
FolderIdentity identity_of(const std::filesystem::path&);

// Moves the finished folder `temporary` to `final` and makes that durable. A checkpoint of that name is replaced at
// once and has the name `temporary` from then on, for the caller to remove (where the file system cannot exchange
// names, it is removed before). Something else of that name is set aside under another one.
void commit_directory(const std::filesystem::path& temporary, const std::filesystem::path& final);

struct Retention {
  int keep_last = 2;                    // newest ones kept, at least 1
  std::int64_t keep_every = 0;          // steps that are multiples of this are kept for good; 0: none
  std::vector<std::int64_t> damaged{};  // steps whose checkpoints are left alone and count for nothing
};

// Checkpoints older than `step`, except the newest keep_last (with that of `step`) and every keep_every-th. Those newer
// than `step` count for nothing.
std::vector<CheckpointEntry> superseded(const std::filesystem::path& folder, std::int64_t step, const Retention&);
// Removes them. Call once that of `step` was verified. One that cannot be removed is a
// warning.
void apply_retention(const std::filesystem::path& folder, std::int64_t step, const Retention&);

// The checkpoint that a path means: itself, or the newest of the run (or folder of checkpoints) at that path.
// Error says what was looked for.
std::vector<CheckpointEntry> resolve_checkpoints(const std::filesystem::path& path_or_run);

}  // namespace ring
