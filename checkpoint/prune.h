#pragma once
// Removes checkpoints of a run that is not training, either by retention rules or by step.

#include <cstdint>
#include <filesystem>
#include <optional>
#include <vector>

#include "checkpoint/directory.h"

namespace ring {

struct PruneRules {
  std::optional<Retention> keep;      // retention as after saving the newest intact checkpoint; nullopt keeps all
  std::vector<std::int64_t> steps{};  // steps whose checkpoints are removed even if the rules keep them
};

struct PrunePlan {
  std::vector<CheckpointEntry> removed, kept;
  std::int64_t newest_complete = 0;
};

// Plans what to remove. Verifies checkpoints, newest first, until one is intact. That checkpoint is always kept, and
// `keep` ignores the damaged checkpoints newer than it. Throws Error if no checkpoint is intact, or if a step in
// `steps` does not exist or is that of the newest intact checkpoint.
PrunePlan plan_prune(const std::filesystem::path& folder, const PruneRules&);
void remove_planned(const PrunePlan&);  // throws Error if one cannot be removed; those before it are then gone

}  // namespace ring
