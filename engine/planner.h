#pragma once
// Predicts the memory and speed of settings on a given number of processes, and which layout is best. Nothing is
// computed (engine/dry_step.h), so it works on any machine.

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "engine/activation_fit.h"

namespace ring {

// A step in one layout, from the view of one rank.
struct PlannedStep {
  Config config;  // resolved for this layout
  ActivationFit activations;
  WorldSize world = 1;
  std::size_t weights = 0, gradients = 0, optimizer_states = 0, lasting = 0, inside_step = 0, peak = 0;
  std::size_t weight_buffers = 0, gradient_buffers = 0;  // included in weights and gradients; see DryStep
  std::size_t host = 0;          // bytes in host memory: host_lasting, activations and keys of chunks
  std::size_t host_lasting = 0;  // held for the whole run; see DryStep::host_lasting()
  std::vector<PartMemory> parts;
  double compute_seconds = 0;    // time of all kernels
  double attention_seconds = 0;  // time of attention kernels only
  double exposed_seconds = 0;    // time of messages and host copies that is not hidden by computation
  double seconds() const { return compute_seconds + exposed_seconds; }
  double tokens_per_second = 0;  // total over all processes
  double mfu = 0;                // model FLOPs utilization relative to DeviceRates::peak_flops
  std::string layout;            // e.g. "dp 2, tp 2, zero 1" or "1 process"
  // Share of the step in which a pipeline stage waits for others; peak of each stage in bytes, and time of its kernels.
  // 0 and empty without stages.
  double bubble = 0;
  double stage_message_seconds = 0;           // time of one message between stages
  double message_waits = 0;                   // share of the step in which stages wait for messages from other stages
  std::optional<double> eager_message_waits;  // the same with eager_1f1b, if it is possible and not the order
  std::vector<std::size_t> stage_peaks;
  std::vector<double> stage_seconds;
  // A parallel.pp_division that noticeably shortens the kernel time of the slowest stage and whose stages fit into the
  // budget with the same activations; empty if there is none.
  std::vector<std::int64_t> better_division;
  const char* limit = "";  // largest part of the step's time: "matrix products", "attention", "memory traffic", ...
};

// Sizes of one pass: the sequences of a micro-batch, the tokens of an MLP chunk, and the tokens of a sequence that are
// computed at a time, 0 for all.
struct StepSizes {
  std::int64_t micro_batch = 0, mlp_chunk = 0, sequence_chunk = 0;
};

// Degrees that a layout search must keep; it may choose the other degrees.
struct FixedDegrees {
  std::optional<std::int64_t> dp, cp, tp, zero;
  bool any() const { return dp || cp || tp || zero; }
  std::string text() const;  // e.g. "cp 4, tp 2, zero 3"
};

struct PlanRequest {
  Config config;  // resolved for one process
  WorldSize world = 1;
  std::size_t budget = 0;  // bytes per device
  DeviceRates rates;
  FixedDegrees fixed = {};
  // If not 0, plans the layouts with the best estimates (engine/layout_estimate.h) first, and ends once this many fit,
  // or once one fits and three times as many were tried.
  std::size_t max_layouts = 0;
  std::function<bool()> stopped = {};  // returns true to end planning with PlanStopped; may be null
  // Bytes of host memory per device for everything there. 0: only train.activation_offload_bytes limits activations.
  std::int64_t host = 0;
};

struct PlanStopped {};

// Reports the progress of a search: number of parts done, number of all parts, fastest step so far (null if there is
// none).
using PlanProgress = std::function<void(std::size_t done, std::size_t all, const PlannedStep* best)>;

// Plans the layout that config.parallel gives. With train.mlp_chunk: auto, all tokens form one chunk if that fits
// without recomputation; otherwise the fastest chunk size is used, and the largest of equally fast ones. With
// train.sequence_chunk: auto, fit_sequence_chunk() chooses the chunk. Returns nullopt if the step does not fit into the
// budget; `min_bytes`, if not null, is then set to the budget that would suffice. Throws Error if the layout is
// invalid.
std::optional<PlannedStep> plan_step(const PlanRequest&, std::size_t* min_bytes = nullptr);

// Predicts the step with this activation plan. config.train.micro_batch and .mlp_chunk must be numbers, not auto.
PlannedStep predict_step(const PlanRequest&, const ActivationFit&);

// Result of trying a layout. At most one field is set.
struct LayoutResult {
  std::optional<PlannedStep> step;  // nullopt if the layout does not fit or is invalid
  std::size_t min_bytes = 0;        // bytes that would suffice if the layout does not fit; otherwise 0
  std::string error;                // why the layout is invalid
};
// Plans the layout for `dp` replicas, with the fastest micro-batch that fits or the micro-batch that the settings fix.
LayoutResult try_micro_batches(PlanRequest, std::int64_t dp);

// Returns train.micro_batch for the layout in config.parallel: the fastest micro-batch that fits, with the best
// train.mlp_chunk if that is auto. Throws Error if none fits.
StepSizes fit_micro_batch(const PlanRequest&);
// Returns train.mlp_chunk for the given micro-batch; if nothing fits, the chunk size that needs the least memory.
std::int64_t fit_mlp_chunk(const PlanRequest&);
// Returns train.sequence_chunk: 0 if one whole sequence fits, otherwise the largest number that fits of 2^20 and the
// smaller powers of two, down to 4096. If none fits, returns the smallest with a valid layout; 0 if there is none.
std::int64_t fit_sequence_chunk(PlanRequest);
// Returns the values of train.sequence_chunk that auto considers, in the order in which it tries them: 0 (whole
// sequences), then smaller and smaller chunks.
std::vector<std::int64_t> sequence_chunks(const Config&);
// Returns all of train.micro_batch, .mlp_chunk and .sequence_chunk; chooses those that are auto. If sequence_chunk is
// auto and one whole sequence fits, but not the share of the batch that micro_batch 0 means, also chooses micro_batch.
// Throws Error as fit_micro_batch() does.
StepSizes fit_step_sizes(PlanRequest);
// Returns the smallest chunk size that train.mlp_chunk: auto considers; 0 means all tokens.
std::int64_t min_mlp_chunk(const PlanRequest&);

}  // namespace ring
