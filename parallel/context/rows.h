#pragma once
// Rows of [N,H,D] tensors on their way between tensors and messages. A message holds the copies' rows of one tensor,
// then those of a second one; nothing lies between them. All of it is queued on the stream.

#include <vector>

#include "kernels/row_copy.h"
#include "parallel/context/plan.h"

namespace ring {

inline void move_rows(const Tensor& dst, const Tensor& src, const RowMove& rows, const ExecContext& ctx) {
  copy_rows_kernel({dst, src, rows}, ctx);
}

// The i-th of several tensors [N,H,D] that lie in one piece [count,N,H,D].
Tensor part(const Tensor& all, std::int64_t i);

// Keys and values, or their gradients: [N,H,D] each, contiguous, in one piece [2,N,H,D].
struct KvPair {
  Tensor both, k, v;
};
KvPair kv_pair(const Tensor& both);
KvPair no_gradients(const Tensor& keys, const ExecContext&);         // f32 zeros for keys [N,H,D]
void add(const Tensor& to, const Tensor& from, const ExecContext&);  // to += from, f32 and contiguous

// Where one is to lie that `take` gives so many elements: its room, cut to what travels. like: keys [N,H,D].
template <class Take>
Tensor message_in(const NeededKeys& need, const Tensor& like, const Take& take) {
  const std::int64_t heads = like.dim(1), dim = like.dim(2);
  return take(2 * need.room(heads) * dim).narrow(0, 0, 2 * need.row_heads(heads) * dim);
}
// The message [2,..] that the owner's k and v [N,H,D] make, in their type. k, v: any strides with unit last.
Tensor pack(const NeededKeys&, const Tensor& k, const Tensor& v, const ExecContext&);
// The rows that the receiver computes with, of a message: itself where it is whole, else beside it with 0 between.
// like: keys [N,H,D].
KvPair unpack(const NeededKeys&, const Tensor& message, const Tensor& like, const ExecContext&);
// The way home. The message of gradients [rows,H,D] f32: the tensor itself where it is whole.
Tensor pack_home(const NeededKeys&, const KvPair& gradients, const ExecContext&);
// Adds what came home to the owner's gradients.
void add_home(const NeededKeys&, const Tensor& message, const KvPair& gradients, const ExecContext&);

// dst [N,H,D], any strides = src [N,H,D] f32 contiguous, rounded where dst is bf16.
void store(const Tensor& dst, const Tensor& src, const ExecContext&);

}  // namespace ring
