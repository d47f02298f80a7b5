#pragma once
// Division of a model into the stages of a pipeline.

#include <vector>

#include "model/model.h"
#include "parallel/pipeline/schedule.h"
#include "parallel/plan.h"

namespace ring {

// Divides the blocks among the parts of the model, at least one block per part. All parts get about the same number of
// FLOPs: the last part, which has the loss head, gets fewer blocks. If the other blocks do not divide evenly, later
// parts get one block more, because earlier stages hold more activations.
std::vector<BlockRange> divide_blocks(const ModelConfig& resolved, int parts);

// micro_batches: number of micro-batches of a replica in this step.
PipelineShape pipeline_shape(const ParallelPlan&, std::int64_t micro_batches);

// Returns the maximum number of micro-batches whose keys and values a stage stores at the same time for attention of
// later slices; 1 without parallel.pp_slices.
int micro_batches_of_keys(const ParallelPlan&, int stage);

// Returns the parts that a stage holds.
std::vector<BlockRange> parts_of_stage(const ModelConfig& resolved, const ParallelPlan&, int stage);

}  // namespace ring
