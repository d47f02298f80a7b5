#pragma once
// AdamW over what this process holds of the parameters: one kernel call per run of pieces that lie together.

#include "comm/communicator.h"
#include "optim/config.h"
#include "parallel/owned_shard.h"

namespace ring {

class Optimizer {
 public:
  // norm_over: groups of ranks whose squares add up to the norm of the whole gradient. Of parameters that every slice
  // of the model holds, the first slice's count.
  Optimizer(const OwnedShard&, const OptimizerConfig&, std::uint64_t seed, const ExecContext&,
            std::vector<Communicator*> norm_over = {});

  // Gradient norm, clip factor, update. A norm or a loss [1] that is not finite, in this step or in an earlier one
  // since the state was last reset, leaves everything untouched.
  void update(const Tensor& loss, const ExecContext&);

  Tensor m, v;   // moments, flat, laid out like the holding's shard
  Tensor state;  // the StepState, on the device

 private:
  void norm(const ExecContext&);

  const OwnedShard& holding_;
  OptimizerConfig config_;
  std::uint64_t seed_;
  std::vector<UpdateRange> runs_;
  std::vector<Tensor> counted_;  // gradients whose squares this process adds
  std::vector<Communicator*> norm_over_;
  Tensor squares_;  // [1] f32
};

}  // namespace ring
