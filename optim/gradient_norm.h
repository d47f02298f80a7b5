#pragma once
// The norm of the whole gradient, and what follows from it for a step.

#include <vector>

#include "comm/communicator.h"
#include "parallel/owned_shard.h"

namespace ring {

class GradientNorm {
 public:
  // over: groups of ranks whose squares add up to the norm of the whole gradient. Of parameters that every slice of the
  // model holds, the first slice's count.
  GradientNorm(const OwnedShard&, std::vector<Communicator*> over, const ExecContext&);

  // Squared norm, clip factor and `accepted` into the StepState on the device, the same on every rank. clip: the
  // largest norm; 0: any. A norm or a loss [1] that is not finite or above the state's limits, in this step or in an
  // earlier one since the state was last reset, is remembered there.
  void judge(const Tensor& step, double clip, const Tensor& loss, const ExecContext&) const;

 private:
  std::vector<Tensor> counted_;  // gradients whose squares this process adds
  std::vector<Communicator*> over_;
  Tensor squares_;  // [1] f32
};

}  // namespace ring
