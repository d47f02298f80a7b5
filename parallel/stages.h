#pragma once
// Division of a model into the stages of a pipeline.

#include <vector>

#include "model/model.h"
#include "parallel/pipeline/schedule.h"
#include "parallel/plan.h"

namespace ring {

// Cost of each piece of a training step, in any unit: the embedding, each block, and the final norm with the loss head.
struct BlockCosts {
  double embedding = 0;
  std::vector<double> blocks;
  double head = 0;
};
BlockCosts flops_of_blocks(const ModelConfig& resolved);
// Returns the cost of a part, including those of the embedding and the head if it has them.
double cost_of(const BlockCosts&, const BlockRange&);

// Divides the blocks among the parts of the model, at least one block per part, so that the most expensive stage costs
// as little as possible. Of equally good divisions, returns one with similar costs. If the numbers of blocks must
// differ then, earlier parts get fewer blocks, because earlier stages hold more activations. With several parts per
// stage, a local search starts from the division whose most expensive part is cheapest. It finds the best division if
// all blocks cost the same; otherwise a better one may exist.
std::vector<BlockRange> divide_blocks(const BlockCosts&, int stages, int parts_per_stage = 1);

// Returns all parts of the model, divided according to parallel.pp_division or, if that is empty, into stages with
// about equal FLOPs.
std::vector<BlockRange> model_parts(const ModelConfig& resolved, const ParallelPlan&);

// micro_batches: number of micro-batches of a replica in this step.
PipelineShape pipeline_shape(const ParallelPlan&, std::int64_t micro_batches);

// Returns the maximum number of micro-batches whose keys and values a stage stores at the same time for attention of
// later slices; 1 without parallel.pp_slices.
int micro_batches_of_keys(const ParallelPlan&, int stage);

// Returns the parts that a stage holds.
std::vector<BlockRange> parts_of_stage(const ModelConfig& resolved, const ParallelPlan&, int stage);

}  // namespace ring
