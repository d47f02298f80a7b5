#pragma once
// Results of some rows of a call, as cuDNN wrote them for them alone, and the whole call's.

#include "kernels/attention/attention.h"

namespace ring::cudnn {

// The rows of `batch` sequences of `count` tokens each: sequence b starts at row first + b * pitch.
struct Rows {
  std::int64_t batch = 0, count = 0, first = 0, pitch = 0;
  std::int64_t total() const { return batch * count; }
  bool all_of(std::int64_t rows) const { return first == 0 && (batch == 1 || pitch == count) && total() == rows; }
};

// The log-sum-exp of these rows, [heads, N] -> [batch, heads, count], both f32.
Tensor by_sequence(const Tensor& lse, const Rows&, const ExecContext&);

// The call's results, from out [total,Hq,D] bf16 and lse [Hq,total] of the queries in these rows: merged in f32 with
// a.carry and a.lse where there is a carry. Rows of no span are filled as the contract says.
void merge(const Tensor& out, const Tensor& lse, const Rows&, const Attention& a, const ExecContext&);

// The call's gradients, from those of these rows alone (bf16), added in f32 to the carries where there are some.
struct PartGradients {
  Tensor dq, dk, dv;  // [total,H,D]
};
void add(const PartGradients&, const Rows& queries, const Rows& keys, const AttentionBackward& a, const ExecContext&);

}  // namespace ring::cudnn
