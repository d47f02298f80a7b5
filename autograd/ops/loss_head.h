#pragma once
// Helpers shared by the loss heads of one and of several processes.

#include "autograd/ops.h"

namespace ring {

// Throws Error if the input with `tokens` tokens, the weight with `vocab_rows` unsharded rows, and the head's tensors
// do not fit.
void check_head(const Tensor& x, std::int64_t tokens, const Tensor& w, std::int64_t vocab_rows, const LossHead&);

// Returns an uninitialized chunk of logits, [rows, columns], with as many rows as are held at a time.
Tensor empty_chunk(const ExecContext&, const LossHead&, std::int64_t tokens, std::int64_t columns, DType);

// Returns `logits` after LossHead::soft_cap, or `logits` itself if there is no cap.
Tensor capped_logits(const ExecContext&, const LossHead&, const Tensor& logits);
// Replaces `gradient`, of the capped logits, by the gradient of `logits`.
void uncap_gradient(const ExecContext&, const LossHead&, const Tensor& logits, const Tensor& gradient);

// Records the loss. The forward has already computed both gradients: of x in `dx` (undefined if not wanted), and of w
// in the slot of w. That slot is still an input of the step, so that its on_ready waits for the step.
Var record_loss(const Run&, const Tensor& sum, const Var& x, const Var& w, const Tensor& dx);

// cross_entropy_head() over the processes of run.layout.tp. Collective.
LossOutput vocab_parallel_head(Run&, const Var& x, const Var& w, const LossHead&);

}  // namespace ring
