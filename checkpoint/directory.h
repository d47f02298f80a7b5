#pragma once
// The folder of a run's checkpoints: step-000000123 for each, step-000000123.tmp-<attempt> while one is being written
// or removed.

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace ring {

struct CheckpointEntry {
  std::int64_t step = 0;
  std::filesystem::path path;
};

std::string checkpoint_name(std::int64_t step);

// Committed ones by ascending step, verified or not; nothing when there is no such folder.
std::vector<CheckpointEntry> list_checkpoints(const std::filesystem::path& folder);

// Removes what dead attempts left behind. Call at the start of a run, on one rank, before anything writes there.
// Returns how many were removed.
int remove_stale(const std::filesystem::path& folder);

// Moves the finished folder `temporary` to `final` and makes that durable; takes the place of an older one at once.
void commit_directory(const std::filesystem::path& temporary, const std::filesystem::path& final);

struct Retention {
  int keep_last = 2;            // newest ones kept, at least 1
  std::int64_t keep_every = 0;  // steps that are multiples of this are kept for good; 0: none
};

// Removes checkpoints older than `step`, except the newest keep_last (with that of `step`) and every keep_every-th.
// Those newer than `step` are left alone. Call once that of `step` was verified.
void apply_retention(const std::filesystem::path& folder, std::int64_t step, const Retention&);

// The checkpoint that a path means: itself, or the newest of the run (or folder of checkpoints) at that path.
// Error says what was looked for.
std::vector<CheckpointEntry> resolve_checkpoints(const std::filesystem::path& path_or_run);

}  // namespace ring
