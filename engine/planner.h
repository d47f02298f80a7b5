#pragma once
// What settings would take on so many processes, and which layout of them is best: nothing is computed
// (engine/dry_step.h), so it can be asked on any machine.

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
  std::size_t host = 0;  // in host memory: activations, optimizer states and values
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

struct PlanQuestion {
  Config config;  // resolved, as for one process
  int world = 1;
  std::size_t budget = 0;  // bytes of each device
  DeviceRates rates;
};

// One layout: config.parallel as it stands. With train.mlp_chunk: auto, all tokens at once where that fits with nothing
// computed again, else the fastest; of those that are as fast, the largest chunk. Nothing: it does not fit into the
// budget. Error: it is none.
std::optional<PlannedStep> plan_step(const PlanQuestion&);

// What a step takes that treats its activations so. config.train.micro_batch and .mlp_chunk are numbers.
PlannedStep predict_step(const PlanQuestion&, const ActivationFit&);

// Those that fit, the fastest first; degrees are tried in powers of two, and each ZeRO stage that saves something.
std::vector<PlannedStep> plan_layouts(const PlanQuestion&);

// train.micro_batch of the layout that config.parallel asks for: the one that fits and is fastest, with the best
// train.mlp_chunk where that is auto. Error: none fits.
StepSizes fit_micro_batch(const PlanQuestion&);
// train.mlp_chunk alone, for the micro-batch as it is. Where nothing fits, what takes least.
std::int64_t fit_mlp_chunk(const PlanQuestion&);

// The longest context, a power of two times 1,024 (or so many thousand more), whose step fits in some layout with one
// sequence at a time in each replica; 0: not even 1,024. To a sixteenth.
std::int64_t longest_context(const PlanQuestion&);

}  // namespace ring
