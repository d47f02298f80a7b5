#pragma once
// Removing checkpoints of a run that does not train, by rules or by name.

#include <cstdint>
#include <filesystem>
#include <optional>
#include <vector>

#include "checkpoint/directory.h"

namespace ring {

struct PruneRules {
  std::optional<Retention> keep;      // as a run does after a save of its newest whole one
  std::vector<std::int64_t> steps{};  // these, whatever the rules keep
};

struct PrunePlan {
  std::vector<CheckpointEntry> removed, kept;
  std::int64_t newest_whole = 0;
};

// What the rules remove. Reads checkpoints, the newest first, until one is whole: that one is always kept, and rules
// leave alone what is newer and damaged. Error: none is whole, a step is not there, or is that of the newest whole one.
PrunePlan plan_prune(const std::filesystem::path& folder, const PruneRules&);
void remove_planned(const PrunePlan&);  // Error: one cannot be removed; those before it are gone

}  // namespace ring
