#pragma once
// What the blocks of a step may do with their activations, and what each of these ways takes, known without computing.

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

// A step with every block treated alike is run for each way: what a block takes does not depend on how the others are
// treated.
class ActivationWays {
 public:
  // host_room: bytes of the host's memory for what blocks move. 0: blocks move nothing, unless
  // train.activation_offload: true says so, which then has no bound.
  ActivationWays(const Config& resolved, int world, const DeviceRates&, std::size_t host_room);

  std::size_t count() const { return ways_.size(); }
  // From those that keep most to those that keep least, on the device as a whole, then with the host.
  ActivationPlan uniform(std::size_t way) const;
  // As it will run: what finds no room on the host stays.
  DryStep dry(const ActivationPlan&) const;

  // The fastest, and the one that takes least of the device.
  std::optional<SolvedPlan> fastest(ActivationBudget);
  std::optional<SolvedPlan> smallest();
  // The fastest, or the one that takes least of the device, in which the first blocks lie in segments. Nothing: none
  // fits, or the settings say what is computed again or moved.
  std::optional<SolvedPlan> fastest_in_segments(ActivationBudget);
  std::optional<SolvedPlan> smallest_in_segments();
  std::size_t host_room() const { return host_room_; }

 private:
  const DryStep& step(std::size_t way);
  DryStep run(const ActivationPlan&, std::size_t host_room) const;
  const PartOptions& options();
  std::size_t base() { return step(0).parts.front().before; }  // in use before the first part
  ActivationPlan plan_of(const ActivationChoice&);
  std::vector<PartOption> block_options(std::size_t part);
  std::size_t first_block();
  std::vector<Segments> segments() const;
  PartOptions in_segments(const Segments&);
  SolvedPlan plan_of(const ActivationChoice&, const Segments&);
  PartOption option(std::size_t way, std::size_t part);
  double seconds(std::size_t way, const ScopeId& part, ScopePass) const;

  const Config& config_;
  const int world_;
  const DeviceRates& rates_;
  const Precision precision_;
  const std::size_t host_room_;
  std::vector<BlockPlan> ways_;
  std::vector<DryStep> steps_;  // by way, as far as they were asked for
  PartOptions options_;
};

// "12 blocks keep everything", "1 block computes the MLP again and keeps the rest on the host".
std::string blocks_text(std::ptrdiff_t blocks, const BlockPlan&);

// "12 blocks keep everything, 9 blocks compute the MLP again".
std::string plan_text(const ActivationPlan&);

// What the settings say of all blocks; `none` for auto.
Recompute given_recompute(const Config&);

}  // namespace ring
