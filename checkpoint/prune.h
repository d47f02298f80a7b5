#pragma once
// Removes checkpoints of a run that is not training, by retention rules or by step.

#include <cstdint>
#include <filesystem>
#include <optional>
#include <vector>

#include "checkpoint/directory.h"

namespace ring {

struct PruneRules {
  std::optional<Retention> keep;      // retention as after a save of the newest intact checkpoint; nullopt keeps all
  std::vector<std::int64_t> steps{};  // steps to remove even if the rules keep them
};

struct PrunePlan {
  std::vector<CheckpointEntry> removed, kept;
  std::int64_t newest_complete = 0;
};

// Plans what to remove. Verifies checkpoints, newest first, until one is intact. That checkpoint is always kept, and
// `keep` ignores the newer, damaged ones. Throws Error if no checkpoint is intact, or if a step in `steps` does not
// exist or is the newest intact one.
PrunePlan plan_prune(const std::filesystem::path& folder, const PruneRules&);
void remove_planned(const PrunePlan&);  // Error if one cannot be removed; those before it are gone

}  // namespace ring
