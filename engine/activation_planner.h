#pragma once
// The policies by which a step's blocks may treat their activations, and the predicted memory and time of each policy.
// Nothing is computed for the prediction.

#include <optional>
#include <vector>

#include "engine/dry_step.h"
#include "engine/memory/activation_segments.h"
#include "engine/memory/activation_solver.h"
#include "engine/memory/cost_model.h"

namespace ring {

struct SolvedPlan {
  ActivationPlan plan;
  std::int64_t nanoseconds = 0;
};

// Dry-runs one step for each policy, with the same policy for all blocks: a block's memory and time do not depend on
// the policies of other blocks.
class ActivationPlanner {
 public:
  // host_room: bytes of host memory for offloaded activations. If 0, blocks offload nothing, except with
  // train.activation_offload: true, which then has no limit.
  ActivationPlanner(const Config& resolved, WorldSize world, const DeviceRates&, std::size_t host_room);

  std::size_t count() const { return policies_.size(); }
  // Returns the plan in which all blocks use this policy. Policies without offloading come first. Within policies with
  // and without offloading, the order is from the one that saves most activations to the one that saves fewest.
  ActivationPlan uniform_plan(std::size_t policy) const;
  // Dry-runs a step with this plan, in the pipeline stage that needs the most memory. Activations that exceed
  // host_room() stay on the device, as in the real step.
  DryStep dry_run(const ActivationPlan&) const;

  // Returns the plan in which all blocks use the given policy, except that the last block offloads nothing.
  SolvedPlan same_for_all(std::size_t policy);
  // Return the fastest plan within the budget, and the plan with the lowest device memory; nullopt if no plan fits.
  std::optional<SolvedPlan> fastest_plan(ActivationBudget);
  std::optional<SolvedPlan> min_memory_plan();
  // Same, but with segmented checkpointing of the first blocks. Return nullopt if no plan fits, or if the settings fix
  // what is recomputed or offloaded.
  std::optional<SolvedPlan> fastest_in_segments(ActivationBudget);
  std::optional<SolvedPlan> min_memory_in_segments();
  std::size_t host_room() const { return host_room_; }

 private:
  const DryStep& step_of_policy(std::size_t policy);
  DryStep dry_run(const ActivationPlan&, std::size_t host_room) const;
  const PartOptions& part_options();
  std::size_t base() { return step_of_policy(0).parts.front().before; }  // bytes in use before the first part
  ActivationPlan plan_of(const ActivationChoice&);
  std::vector<PartOption> block_options(std::size_t part);
  std::size_t first_block();
  std::vector<Segments> segments() const;
  PartOptions in_segments(const Segments&);
  SolvedPlan plan_of(const ActivationChoice&, const Segments&);
  PartOption make_option(std::size_t policy, std::size_t part);
  double seconds(std::size_t policy, const ScopeId& part, ScopePass) const;

  const Config& config_;
  const WorldSize world_;
  const DeviceRates& rates_;
  const Precision precision_;
  const std::size_t host_room_;
  std::vector<BlockPlan> policies_;
  std::vector<DryStep> steps_;  // dry run of each policy that was requested so far
  PartOptions options_;
};

// Returns e.g. "12 blocks keep everything" or "1 block recomputes the MLP and keeps the rest on the host".
std::string blocks_text(std::ptrdiff_t blocks, const BlockPlan&);

// Returns e.g. "12 blocks keep everything, 9 blocks recompute the MLP".
std::string plan_text(const ActivationPlan&);

// Returns the recomputation that the settings fix for all blocks; `none` for auto.
Recompute given_recompute(const Config&);

}  // namespace ring
