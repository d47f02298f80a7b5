#pragma once
// Shared by the loss head of one process and that of several.

#include "autograd/ops.h"

namespace ring {

// Error: an input of so many tokens, a weight that as a whole has so many rows, and the head's tensors do not fit.
void check_head(const Tensor& x, std::int64_t tokens, const Tensor& w, std::int64_t vocab_rows, const LossHead&);

// Logits of as many tokens as are held at a time: [rows, columns].
Tensor empty_chunk(const ExecContext&, const LossHead&, std::int64_t tokens, std::int64_t columns, DType);

// Records the loss, whose forward has computed both gradients: that of x as `dx`, undefined if nobody wants it.
// The weight's gradient is written, yet its slot stays among the inputs: on_ready waits for this step.
Var record_loss(const Run&, const Tensor& sum, const Var& x, const Var& w, const Tensor& dx);

// cross_entropy_head over the processes of run.tp.
LossOutput sliced_head(Run&, const Var& x, const Var& w, const LossHead&);

}  // namespace ring
