#include "checkpoint/prune.h"

#include <algorithm>

#include "checkpoint/reader.h"
#include "core/check.h"

namespace ring {
namespace {

void check_named(const PruneRules& rules, const std::vector<CheckpointEntry>& all, std::int64_t newest_complete,
                 const std::filesystem::path& folder) {
  for (const std::int64_t step : rules.steps) {
    if (std::ranges::find(all, step, &CheckpointEntry::step) == all.end())
      fail("no checkpoint of step ", step, " exists in ", folder.string(),
           ": `ringmaster checkpoint inspect` lists the steps");
    if (step == newest_complete)
      fail("the checkpoint of step ", step, " is the newest whole one in ", folder.string(),
           ", which is never removed: the run could not be resumed. To give up the run, delete its folder");
  }
}

}  // namespace

PrunePlan plan_prune(const std::filesystem::path& folder, const PruneRules& rules) {
  const std::optional<FoundCheckpoint> newest = find_newest_verified(folder);
  if (!newest) fail("there is no checkpoint in ", folder.string());
  PrunePlan plan;
  plan.newest_complete = newest->manifest.step;
  const std::vector<CheckpointEntry> all = list_checkpoints(folder);
  check_named(rules, all, plan.newest_complete, folder);
  std::vector<CheckpointEntry> old;
  if (rules.keep) old = list_superseded(folder, plan.newest_complete, *rules.keep);
  for (const CheckpointEntry& e : all) {
    const bool by_rule = std::ranges::find(old, e.step, &CheckpointEntry::step) != old.end();
    (by_rule || std::ranges::count(rules.steps, e.step) ? plan.removed : plan.kept).push_back(e);
  }
  return plan;
}

void remove_planned(const PrunePlan& plan) {
  for (const CheckpointEntry& e : plan.removed)
    if (const std::error_code error = remove_checkpoint(e.path))
      fail("cannot remove ", e.path.string(), ": ", error.message());
}

}  // namespace ring
