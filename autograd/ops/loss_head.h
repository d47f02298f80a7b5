#pragma once
// Helpers shared by the loss heads of one and of several processes.

#include "autograd/ops.h"

namespace ring {

// Throws Error if the input with `tokens` tokens, the weight with `vocab_rows` unsharded rows, and the head's tensors
// do not fit.
void check_head(const Tensor& x, std::int64_t tokens, const Tensor& w, std::int64_t vocab_rows, const LossHead&);

// Returns an uninitialized chunk of logits, [rows, columns], with as many rows as are held at a time.
Tensor empty_chunk(const ExecContext&, const LossHead&, std::int64_t tokens, std::int64_t columns, DType);

// Records the loss. The forward has already computed both gradients: that of x is `dx`, undefined if not wanted; the
// weight's is written, yet its slot stays among the inputs, so that on_ready waits for this step.
Var record_loss(const Run&, const Tensor& sum, const Var& x, const Var& w, const Tensor& dx);

// cross_entropy_head() over the processes of run.tp. Collective.
LossOutput vocab_parallel_head(Run&, const Var& x, const Var& w, const LossHead&);

}  // namespace ring
