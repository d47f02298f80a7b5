#pragma once
// AdamW over the flat parameter buffer: one kernel call for vectors, one for matrices.

#include "model/params.h"
#include "trainer/config.h"

namespace ring {

class Optimizer {
 public:
  Optimizer(Parameters&, const OptimizerConfig&, const Context&);

  // Puts step and learning rate into the step state before the first forward.
  void begin(std::int64_t step, double lr, double valid_tokens, const Context&);
  // Gradient norm, clip factor, update. A norm or a loss [1] that is not finite leaves everything untouched.
  void update(const Tensor& loss, const Context&);
  StepState read_state(const Context&) const;  // blocks the host

  Tensor m, v;  // moments, flat f32, laid out like Parameters::values

 private:
  Parameters& params_;
  OptimizerConfig config_;
  Tensor state_;  // a StepState
};

}  // namespace ring
