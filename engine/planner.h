#pragma once
// What settings would take on so many processes, and which layout of them is best: nothing is computed
// (engine/dry_step.h), so it can be asked on any machine.

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "engine/activation_fit.h"

namespace ring {

// A step of one layout, as one rank sees it.
struct PlannedStep {
  Config config;  // resolved for this layout
  ActivationFit activations;
  int world = 1;
  std::size_t weights = 0, gradients = 0, optimizer_states = 0, lasting = 0, inside_step = 0, peak = 0;
  std::size_t weight_buffers = 0, gradient_buffers = 0;  // of weights and gradients: DryStep
  std::size_t host = 0;                                  // in host memory: activations, optimizer states and values
  std::size_t host_states = 0;                           // of that, states and values
  std::vector<PartMemory> parts;
  double compute_seconds = 0;    // of the kernels
  double attention_seconds = 0;  // of these, of attention's own kernels
  double exposed_seconds = 0;    // of messages, and of copies to the host and back, that no computation hides
  double seconds() const { return compute_seconds + exposed_seconds; }
  double tokens_per_second = 0;  // of all processes
  double mfu = 0;                // of DeviceRates::peak_flops
  std::string layout;            // "dp 2, tp 2, zero 1"; "1 process"
  const char* limit = "";        // what the step spends most on: "products", "attention", "memory traffic", ..
};

// What a run computes at a time.
struct StepSizes {
  std::int64_t micro_batch = 0, mlp_chunk = 0;
};

// Degrees that a search of layouts keeps. The others are open.
struct FixedDegrees {
  std::optional<std::int64_t> dp, cp, tp, zero;
  bool any() const { return dp || cp || tp || zero; }
  std::string text() const;  // "cp 4, tp 2, zero 3"
};

struct PlanQuestion {
  Config config;  // resolved, as for one process
  int world = 1;
  std::size_t budget = 0;  // bytes of each device
  DeviceRates rates;
  FixedDegrees fixed = {};
  std::function<bool()> stopped = {};  // returns true if planning is to end with PlanStopped; null: it never is
};

struct PlanStopped {};

// Tells how far a search is: parts that are done, all parts, and the fastest step so far (null: none).
using PlanProgress = std::function<void(std::size_t done, std::size_t all, const PlannedStep* best)>;

// One layout: config.parallel as it stands. With train.mlp_chunk: auto, all tokens at once where that fits with nothing
// computed again, else the fastest; of those that are as fast, the largest chunk. Nothing: it does not fit into the
// budget, and `least`, where it is asked for, is the budget that would do. Error: it is none.
std::optional<PlannedStep> plan_step(const PlanQuestion&, std::size_t* least = nullptr);

// What a step takes that treats its activations so. config.train.micro_batch and .mlp_chunk are numbers.
PlannedStep predict_step(const PlanQuestion&, const ActivationFit&);

// What became of a layout.
struct TriedStep {
  std::optional<PlannedStep> step;  // nothing: there is none, because of
  std::size_t least = 0;            // the budget, where this would do; 0:
  std::string error;                // the settings, which make no such layout
};
// With the fastest micro-batch of those that fit `dp` replicas, unless the settings say which.
TriedStep try_micro_batches(PlanQuestion, std::int64_t dp);

// train.micro_batch of the layout that config.parallel asks for: the one that fits and is fastest, with the best
// train.mlp_chunk where that is auto. Error: none fits.
StepSizes fit_micro_batch(const PlanQuestion&);
// train.mlp_chunk alone, for the micro-batch as it is. Where nothing fits, what takes least.
std::int64_t fit_mlp_chunk(const PlanQuestion&);
// The smallest that train.mlp_chunk: auto looks at; 0: all tokens.
std::int64_t least_mlp_chunk(const PlanQuestion&);

}  // namespace ring
