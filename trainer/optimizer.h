#pragma once
// AdamW over the flat parameter buffer: one kernel call for vectors, one for matrices.

#include "parallel/replicated.h"
#include "trainer/config.h"

namespace ring {

class Optimizer {
 public:
  // tp: the processes that hold the model's slices, or null.
  Optimizer(Parameters&, const OptimizerConfig&, std::uint64_t seed, const Context&, Communicator* tp = nullptr);

  // Gradient norm, clip factor, update. A norm or a loss [1] that is not finite, in this step or in an earlier one
  // since the state was last reset, leaves everything untouched.
  void update(const Tensor& loss, const Context&);

  Tensor m, v;   // moments, flat, laid out like Parameters::values
  Tensor state;  // the StepState, on the device

 private:
  void add_norm(const Context&);

  Parameters& params_;
  OptimizerConfig config_;
  std::uint64_t seed_;
  Communicator* tp_;
  std::vector<FlatRange> counted_;
};

}  // namespace ring
