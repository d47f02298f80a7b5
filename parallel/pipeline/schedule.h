#pragma once
// Pipeline schedules as data: for each stage, the forwards and backwards that it runs, in order. The messages between
// stages follow from this table. Nothing here depends on a model or on a transport.

#include <cstdint>
#include <optional>
#include <vector>

namespace ring {

// Order in which a stage runs the forwards and backwards of its micro-batches; see make_pipeline_table().
enum class PipelineOrder : std::uint8_t { automatic, one_f_one_b, interleaved, eager_1f1b };

// The model consists of stages * parts parts, numbered in the order of the forward pass. Stage s holds the parts s,
// s + stages, s + 2 * stages, .. (several: interleaved stages, Narayanan et al. 2021, section 2.2).
// Stages process units. A unit is a micro-batch or, if micro-batches are divided into slices of consecutive tokens
// (TeraPipe, Li et al. 2021), one slice: unit m * slices + s is slice s of micro-batch m.
struct PipelineShape {
  int stages = 1;         // ranks of the axis "pp"
  int parts = 1;          // parts of each stage
  int micro_batches = 1;  // micro-batches of one replica in a step
  int slices = 1;         // slices of each micro-batch
  int all_parts() const { return stages * parts; }
  int units() const { return micro_batches * slices; }
  int stage_of(int part) const { return part % stages; }
  // Returns the unit of the i-th backward of each part. Within a micro-batch the last slice comes first, because later
  // slices contribute to the gradients of earlier slices' keys.
  int backward_unit(int i) const { return i - i % slices + slices - 1 - i % slices; }
};

enum class PipelinePass : std::uint8_t { forward, backward };

// The forward or the backward of one unit through one part of the model.
struct PipelineAction {
  PipelinePass pass = PipelinePass::forward;
  int part = 0;  // part of the model
  int unit = 0;  // micro-batch, or slice of a micro-batch
  bool operator==(const PipelineAction&) const = default;
};

using PipelineTable = std::vector<std::vector<PipelineAction>>;  // by stage, in the order in which the stage runs them

// Order that `automatic` selects if each stage has one part.
inline constexpr PipelineOrder kDefaultOrder = PipelineOrder::one_f_one_b;
// Returns the order that `automatic` stands for: interleaved if stages have several parts, otherwise kDefaultOrder.
PipelineOrder resolved_order(PipelineOrder, std::int64_t parts);

// Returns the table of a schedule. Every part runs its forwards in the order of the units, and its backwards in the
// order of backward_unit(), so each gradient is summed in the same order as without stages.
//   one_f_one_b  needs parts = 1. Stage s runs stages - s - 1 + slices - 1 forwards, then alternates forwards and
//                backwards (with slices: the order of SlimPipe, Li et al. 2025).
//   eager_1f1b   needs parts = 1. Like one_f_one_b, but stage s runs 2 * (stages - s - 1) + slices - 1 forwards first,
//                so that a unit's way to the next stage and back is hidden by three units instead of two (Zhuang et
//                al. 2022, arXiv 2211.05322). With two stages, messages are hidden if they take at most half
//                as long as forward + backward; with more stages, if they take at most as long as the forward.
//   interleaved  needs micro_batches to be a multiple of stages, and slices = 1. Stages go through `stages`
//                micro-batches at a time.
// Throws Error if the shape does not allow the order.
PipelineTable make_pipeline_table(const PipelineShape&, PipelineOrder);

// Durations of the forward and the backward of one unit through one part, and of a message, in arbitrary ticks.
struct PipelineTicks {
  std::int64_t forward = 1, backward = 2, message = 0;
};
// Returns the durations with which lower_to_steps() orders the messages of a schedule. For eager_1f1b, a message takes
// about the longest time that can be hidden; otherwise it takes no time.
PipelineTicks ticks_of_messages(PipelineOrder, const PipelineShape&);

// Simulated times of a step in which all parts take equally long.
struct PipelineTimes {
  std::vector<std::vector<std::int64_t>> begin;  // start of each action, in the layout of the table
  std::int64_t end = 0;
};
// Simulates a step in which messages do not wait for other messages. Throws Error if the table lacks an action that a
// different one needs, or if stages deadlock.
PipelineTimes simulate(const PipelineShape&, const PipelineTable&, const PipelineTicks& = {});

// Returns the maximum number of (unit, part) pairs that are between their forward and their backward.
int max_in_flight(const std::vector<PipelineAction>& actions_of_stage);
// Returns the maximum number of micro-batches that have begun their first forward and not ended their last backward.
int max_micro_batches_in_flight(const PipelineShape&, const std::vector<PipelineAction>& actions_of_stage);

// Returns the share of a step in which a stage waits for others if all parts take equally long:
// (stages - 1) / (parts * micro_batches * slices + stages - 1).
double bubble(const PipelineShape&);

// A tensor that travels between stages: the input of a forward, or the gradient of the output of a backward.
struct PipelineMessage {
  PipelineAction consumer;  // the action that needs the tensor
  int peer = 0;             // stage that sends or receives it
};

// One step of a stage: either an action or communication (a send, a receive, or both at once).
struct StageStep {
  std::optional<PipelineAction> action;
  std::optional<PipelineMessage> send, receive;  // set only if `action` is not
};

// Returns the steps of `stage` within a training step. All stages order their messages by send times, which are
// simulated with `ticks`. If each stage starts its transfers in this order, one after another, stages cannot deadlock.
// A stage posts the receive of a message before the action during which the message is sent, or after this action if
// messages take no time.
std::vector<StageStep> lower_to_steps(const PipelineShape&, const PipelineTable&, int stage,
                                      const PipelineTicks& ticks);

// Returns the duration of a step in which each stage runs its communication steps one after another, in the order of
// lower_to_steps(), while it runs its actions. The transfer of a message starts once both its stages have started the
// step that contains it. A send and a receive of the same step run at the same time. ticks: durations on each stage;
// the sender's determine the time of a message.
std::int64_t simulate_transfers(const PipelineShape&, PipelineOrder, const std::vector<PipelineTicks>& ticks);

}  // namespace ring
