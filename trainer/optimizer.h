#pragma once
// AdamW over the flat parameter buffer: one kernel call for vectors, one for matrices.

#include "model/params.h"
#include "trainer/config.h"

namespace ring {

class Optimizer {
 public:
  Optimizer(Parameters&, const OptimizerConfig&, std::uint64_t seed, const Context&);

  // Gradient norm, clip factor, update. A norm or a loss [1] that is not finite, in this step or in an earlier one
  // since the state was last reset, leaves everything untouched.
  void update(const Tensor& loss, const Context&);

  Tensor m, v;   // moments, flat, laid out like Parameters::values
  Tensor state;  // the StepState, on the device

 private:
  Parameters& params_;
  OptimizerConfig config_;
  std::uint64_t seed_;
};

}  // namespace ring
