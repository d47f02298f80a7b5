#pragma once
// Merges results that cuDNN computed for some rows of a call, in packed tensors, into the call's tensors.

#include "kernels/attention/attention.h"

namespace ring::cudnn {

// The rows of `batch` sequences of `count` tokens each: sequence b starts at row first + b * pitch.
struct Rows {
  std::int64_t batch = 0, count = 0, first = 0, pitch = 0;
  std::int64_t total() const { return batch * count; }
  bool all_of(std::int64_t rows) const { return first == 0 && (batch == 1 || pitch == count) && total() == rows; }
};

// Copies the log-sum-exp of these rows: [heads, N] -> [batch, heads, count], both f32.
Tensor lse_by_sequence(const Tensor& lse, const Rows&, const ExecContext&);

// Merges out [total,Hq,D] bf16 and lse [Hq,total] of these query rows into the call's results, in f32, with a.carry and
// a.lse if there is a carry. Rows outside all spans are filled as Attention requires.
void merge_rows(const Tensor& out, const Tensor& lse, const Rows&, const Attention& a, const ExecContext&);

// Gradients of some rows of a call, bf16: dq of the query rows, dk and dv of the key rows.
struct PartGradients {
  Tensor dq, dk, dv;  // [total,H,D]
};
// Writes the gradients of these rows to the call's tensors, adding the carries in f32 if there are any.
void add_gradients(const PartGradients&, const Rows& queries, const Rows& keys, const AttentionBackward& a,
                   const ExecContext&);

}  // namespace ring::cudnn
