#include "parallel/context/rows.h"

#include "kernels/elementwise.h"
#include "kernels/row_encoding.h"

namespace ring {
namespace {

std::int64_t heads_of(const RowCopy& c, std::int64_t all) { return c.head < 0 ? all : 1; }

enum class Side : std::uint8_t { owner, receiver };

// Returns the part of a message for one of its two tensors, with heads of D = dim elements. Scales are undefined unless
// the message is of u8.
EncodedRows half(const Tensor& message, int i, std::int64_t dim) {
  const std::int64_t rows = message.numel() / message_numel(1, dim, message.dtype());
  EncodedRows h{message.narrow(0, i * rows * dim, rows * dim), {}};
  if (message.dtype() == DType::u8) h.scales = message.narrow(0, (2 * dim + i) * rows, rows);
  return h;
}

// Calls fn(part, of, move) for each copy of the request:
//   part   the copy's rows in half i of the message, [count,heads,D]
//   of     the copy's heads of t
//   move   the rows of `of` that the copy moves into the message
template <class Fn>
void for_copies(const KeyRequest& need, Side side, const Tensor& t, const Tensor& message, int i, const Fn& fn) {
  const std::int64_t dim = t.dim(2);
  const EncodedRows all = half(message, i, dim);
  std::int64_t at = 0;
  for (const RowCopy& c : need.copies) {
    const std::int64_t heads = heads_of(c, t.dim(1)), rows = c.count * heads;
    EncodedRows part{all.values.narrow(0, at * dim, rows * dim).view({c.count, heads, dim}), {}};
    if (all.scales.defined()) part.scales = all.scales.narrow(0, at, rows).view({c.count, heads});
    const Tensor of = c.head < 0 ? t : t.narrow(1, c.head, 1);
    fn(part, of, RowMove{.first = side == Side::owner ? c.row : c.at, .count = c.count, .step = c.stride});
    at += rows;
  }
}

void gather(const KeyRequest& need, Side side, const Tensor& t, const Tensor& message, int i, const ExecContext& ctx) {
  for_copies(need, side, t, message, i, [&](const EncodedRows& part, const Tensor& of, const RowMove& m) {
    if (t.dtype() == message.dtype())
      move_rows(part.values, of, m, ctx);
    else
      encode_rows_kernel({of, part, m.first, m.step}, ctx);
  });
}
void scatter(const KeyRequest& need, Side side, const Tensor& t, const Tensor& message, int i, const ExecContext& ctx) {
  for_copies(need, side, t, message, i, [&](const EncodedRows& part, const Tensor& of, const RowMove& m) {
    if (t.dtype() == message.dtype())
      move_rows(of, part.values, {.to = m.first, .count = m.count, .to_step = m.step}, ctx);
    else
      decode_rows_kernel({part, of, m.first, m.step}, ctx);
  });
}

Tensor message_of(const KeyRequest& need, const Tensor& like, DType type, const ExecContext& ctx) {
  return message_in(need, like, type, [&](std::int64_t size) { return ctx.empty({size}, type); });
}

// If a message has more copies, it is expanded to all rows, so that a single call adds them.
constexpr std::size_t kMaxAdditions = 16;

}  // namespace

void add(const Tensor& to, const Tensor& from, const ExecContext& ctx) {
  const Tensor a = to.view({to.numel()}), b = from.view({from.numel()});
  axpby_kernel({b, a, a, 1, 1}, ctx);
}

Tensor part(const Tensor& all, std::int64_t i) {
  return all.narrow(0, i, 1).view({all.dim(1), all.dim(2), all.dim(3)});
}

KvPair kv_pair(const Tensor& both) { return {both, part(both, 0), part(both, 1)}; }

KvPair no_gradients(const Tensor& keys, const ExecContext& ctx) {
  return kv_pair(ctx.zeros({2, keys.dim(0), keys.dim(1), keys.dim(2)}));
}

void pack(const KeyRequest& need, const Tensor& k, const Tensor& v, const Tensor& message, const ExecContext& ctx) {
  gather(need, Side::owner, k, message, 0, ctx);
  gather(need, Side::owner, v, message, 1, ctx);
}
Tensor pack(const KeyRequest& need, const Tensor& k, const Tensor& v, DType type, const ExecContext& ctx) {
  const Tensor message = message_of(need, k, type, ctx);
  pack(need, k, v, message, ctx);
  return message;
}

void unpack(const KeyRequest& need, const Tensor& message, const KvPair& to, const ExecContext& ctx) {
  scatter(need, Side::receiver, to.k, message, 0, ctx);
  scatter(need, Side::receiver, to.v, message, 1, ctx);
}
KvPair unpack(const KeyRequest& need, const Tensor& message, const Tensor& like, const ExecContext& ctx) {
  const Shape shape = {2, need.rows, like.dim(1), like.dim(2)};
  if (need.whole && message.dtype() == like.dtype()) return kv_pair(message.view(shape));
  const KvPair out = kv_pair(need.whole ? ctx.empty(shape, like.dtype()) : ctx.zeros(shape, like.dtype()));
  unpack(need, message, out, ctx);
  return out;
}

Tensor pack_gradients(const KeyRequest& need, const KvPair& gradients, DType type, const ExecContext& ctx) {
  if (need.whole && type == DType::f32) return gradients.both.view({gradients.both.numel()});
  const Tensor message = message_of(need, gradients.k, type, ctx);
  gather(need, Side::receiver, gradients.k, message, 0, ctx);
  gather(need, Side::receiver, gradients.v, message, 1, ctx);
  return message;
}

void add_gradients(const KeyRequest& need, const Tensor& message, const KvPair& gradients, const ExecContext& ctx) {
  const bool rounded = message.dtype() != DType::f32;
  bool few = !need.referenced && need.copies.size() <= kMaxAdditions;
  for (const RowCopy& c : need.copies) few = few && c.head < 0 && c.stride == 1;
  if (!few && !rounded) {
    const KvPair all = no_gradients(gradients.k, ctx);
    scatter(need, Side::owner, all.k, message, 0, ctx);
    scatter(need, Side::owner, all.v, message, 1, ctx);
    return add(gradients.both, all.both, ctx);
  }
  for (int i = 0; i < 2; ++i)
    for_copies(need, Side::owner, i == 0 ? gradients.k : gradients.v, message, i,
               [&](const EncodedRows& part, const Tensor& of, const RowMove& m) {
                 if (rounded)
                   decode_rows_kernel({part, of, m.first, m.step, true}, ctx);
                 else
                   add(of.narrow(0, m.first, m.count), part.values, ctx);
               });
}

void copy_rounded(const Tensor& dst, const Tensor& src, const ExecContext& ctx) {
  Tensor rounded = src;
  if (dst.dtype() != src.dtype()) {
    rounded = ctx.empty(src.shape(), dst.dtype());
    cast_kernel({src, rounded}, ctx);
  }
  move_rows(dst, rounded, {.count = src.dim(0)}, ctx);
}

}  // namespace ring
