#pragma once
// Division of a model into the stages of a pipeline.

#include <vector>

#include "model/model.h"
#include "parallel/pipeline/schedule.h"
#include "parallel/plan.h"

namespace ring {

// Divides the blocks among the parts of the model, at least one for each. Every part gets equally much work, by the
// FLOPs of a block and of the loss head: the last part, which has the head, gets fewer blocks. If the rest does not
// divide, later parts get a block more, because earlier stages hold more activations.
std::vector<BlockRange> divide_blocks(const ModelConfig& resolved, int parts);

// micro_batches: of a replica in this step.
PipelineShape pipeline_shape(const ParallelPlan&, std::int64_t micro_batches);

// Returns the parts that a stage holds.
std::vector<BlockRange> parts_of_stage(const ModelConfig& resolved, const ParallelPlan&, int stage);

}  // namespace ring
