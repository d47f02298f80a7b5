#pragma once
// Copies rows of [N,H,D] tensors into messages and back. A message holds the copied rows of one tensor, followed
// without a gap by those of a second tensor. A message of u8 holds e4m3 codes of both, followed by the scales of both
// (kernels/row_encoding.h). If types differ, the copy rounds or decodes. All copies are queued on the stream.

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

// Returns the number of elements of a message with this many rows of heads of each of its two tensors.
inline std::int64_t message_numel(std::int64_t row_heads, std::int64_t dim, DType type) {
  return 2 * row_heads * (type == DType::u8 ? dim + 1 : dim);
}
// Allocates a message buffer of the size KeyRequest::room() with take(number of elements). Returns the part that is
// actually sent. like: keys [N,H,D]. type: of the message.
template <class Take>
Tensor message_in(const KeyRequest& need, const Tensor& like, DType type, const Take& take) {
  const std::int64_t heads = like.dim(1), dim = like.dim(2);
  return take(message_numel(need.room(heads), dim, type)).narrow(0, 0, message_numel(need.row_heads(heads), dim, type));
}
// Packs the owner's k and v [N,H,D] into a message whose elements have their type or u8. The last stride must be 1.
Tensor pack(const KeyRequest&, const Tensor& k, const Tensor& v, DType type, const ExecContext&);
// Same into a given message, which may be for more rows than the request has.
void pack(const KeyRequest&, const Tensor& k, const Tensor& v, const Tensor& message, const ExecContext&);
// Returns the keys and values that the receiver computes with, in the type of the keys `like` [N,H,D]: a view of the
// message if need.whole and the types are equal, else a copy with zeros in the rows that were not sent.
KvPair unpack(const KeyRequest&, const Tensor& message, const Tensor& like, const ExecContext&);
// Copies the rows that were sent into `to`, the receiver's keys and values.
void unpack(const KeyRequest&, const Tensor& message, const KvPair& to, const ExecContext&);
// Returns the message, f32 or bf16, with gradients [rows,H,D] f32 for the owner: a view of the tensor if need.whole and
// the message is f32.
Tensor pack_gradients(const KeyRequest&, const KvPair& gradients, DType type, const ExecContext&);
// Adds a received message of gradients to the owner's gradients.
void add_gradients(const KeyRequest&, const Tensor& message, const KvPair& gradients, const ExecContext&);

// Copies src [N,H,D], f32 and contiguous, to dst [N,H,D], which may have any strides; rounds if dst is bf16.
void copy_rounded(const Tensor& dst, const Tensor& src, const ExecContext&);

}  // namespace ring
