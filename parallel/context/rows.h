#pragma once
// Copies rows of [N,H,D] tensors into messages and back. A message holds the copied rows of one tensor, followed
// without a gap by those of a second tensor. All copies are queued on the stream.

#include <vector>

#include "kernels/row_copy.h"
#include "parallel/context/plan.h"

namespace ring {

inline void move_rows(const Tensor& dst, const Tensor& src, const RowMove& rows, const ExecContext& ctx) {
  copy_rows_kernel({dst, src, rows}, ctx);
}

// Returns element i of several tensors [N,H,D] that are stored as one tensor [count,N,H,D].
Tensor part(const Tensor& all, std::int64_t i);

// Keys and values, or their gradients: [N,H,D] each, contiguous, stored as one tensor [2,N,H,D].
struct KvPair {
  Tensor both, k, v;
};
KvPair kv_pair(const Tensor& both);
KvPair no_gradients(const Tensor& keys, const ExecContext&);         // returns f32 zeros in the shape of keys [N,H,D]
void add(const Tensor& to, const Tensor& from, const ExecContext&);  // computes to += from; both are f32 and contiguous

// Allocates a message buffer of the size KeyRequest::room() with take(number of elements). Returns the part that is
// actually sent. like: keys [N,H,D].
template <class Take>
Tensor message_in(const KeyRequest& need, const Tensor& like, const Take& take) {
  const std::int64_t heads = like.dim(1), dim = like.dim(2);
  return take(2 * need.room(heads) * dim).narrow(0, 0, 2 * need.row_heads(heads) * dim);
}
// Packs the owner's k and v [N,H,D] into a message of their type. Strides may be anything with a unit last stride.
Tensor pack(const KeyRequest&, const Tensor& k, const Tensor& v, const ExecContext&);
// Returns the keys and values that the receiver computes with: a view of the message if need.whole, else a copy with
// zeros in the rows that were not sent. like: keys [N,H,D].
KvPair unpack(const KeyRequest&, const Tensor& message, const Tensor& like, const ExecContext&);
// Returns the message with gradients [rows,H,D] f32 for the owner: a view of the tensor if need.whole.
Tensor pack_gradients(const KeyRequest&, const KvPair& gradients, const ExecContext&);
// Adds a received message of gradients to the owner's gradients.
void add_gradients(const KeyRequest&, const Tensor& message, const KvPair& gradients, const ExecContext&);

// Copies src [N,H,D], f32 and contiguous, to dst [N,H,D], which may have any strides; rounds if dst is bf16.
void copy_rounded(const Tensor& dst, const Tensor& src, const ExecContext&);

}  // namespace ring
