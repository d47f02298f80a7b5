#include "parallel/context/rows.h"

#include "kernels/elementwise.h"

namespace ring {
namespace {

std::int64_t heads_of(const RowCopy& c, std::int64_t all) { return c.head < 0 ? all : 1; }

enum class Side : std::uint8_t { owner, receiver };

// Calls fn(part, of, move) for each copy of the request:
//   part   the copy's rows in the message, [count,heads,D]
//   of     the copy's heads of t
//   move   the rows of `of` that the copy moves into the message
template <class Fn>
void for_copies(const KeyRequest& need, Side side, const Tensor& t, const Tensor& message, const Fn& fn) {
  const std::int64_t dim = t.dim(2);
  std::int64_t at = 0;
  for (const RowCopy& c : need.copies) {
    const std::int64_t heads = heads_of(c, t.dim(1)), size = c.count * heads * dim;
    const Tensor part = message.narrow(0, at, size).view({c.count, heads, dim});
    const Tensor of = c.head < 0 ? t : t.narrow(1, c.head, 1);
    fn(part, of, RowMove{.first = side == Side::owner ? c.row : c.at, .count = c.count, .step = c.stride});
    at += size;
  }
}

void gather(const KeyRequest& need, Side side, const Tensor& t, const Tensor& message, const ExecContext& ctx) {
  for_copies(need, side, t, message,
             [&](const Tensor& part, const Tensor& of, const RowMove& m) { move_rows(part, of, m, ctx); });
}
void scatter(const KeyRequest& need, Side side, const Tensor& t, const Tensor& message, const ExecContext& ctx) {
  for_copies(need, side, t, message, [&](const Tensor& part, const Tensor& of, const RowMove& m) {
    move_rows(of, part, {.to = m.first, .count = m.count, .to_step = m.step}, ctx);
  });
}

Tensor half(const Tensor& message, int i) {
  const std::int64_t size = message.numel() / 2;
  return message.narrow(0, i * size, size);
}

Tensor message_of(const KeyRequest& need, const Tensor& like, DType type, const ExecContext& ctx) {
  return message_in(need, like, [&](std::int64_t size) { return ctx.empty({size}, type); });
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

Tensor pack(const KeyRequest& need, const Tensor& k, const Tensor& v, const ExecContext& ctx) {
  const Tensor message = message_of(need, k, k.dtype(), ctx);
  gather(need, Side::owner, k, half(message, 0), ctx);
  gather(need, Side::owner, v, half(message, 1), ctx);
  return message;
}

KvPair unpack(const KeyRequest& need, const Tensor& message, const Tensor& like, const ExecContext& ctx) {
  const Shape shape = {2, need.rows, like.dim(1), like.dim(2)};
  if (need.whole) return kv_pair(message.view(shape));
  KvPair out = kv_pair(ctx.zeros(shape, message.dtype()));
  scatter(need, Side::receiver, out.k, half(message, 0), ctx);
  scatter(need, Side::receiver, out.v, half(message, 1), ctx);
  return out;
}

Tensor pack_gradients(const KeyRequest& need, const KvPair& gradients, const ExecContext& ctx) {
  if (need.whole) return gradients.both.view({gradients.both.numel()});
  const Tensor message = message_of(need, gradients.k, DType::f32, ctx);
  gather(need, Side::receiver, gradients.k, half(message, 0), ctx);
  gather(need, Side::receiver, gradients.v, half(message, 1), ctx);
  return message;
}

void add_gradients(const KeyRequest& need, const Tensor& message, const KvPair& gradients, const ExecContext& ctx) {
  bool few = !need.referenced && need.copies.size() <= kMaxAdditions;
  for (const RowCopy& c : need.copies) few = few && c.head < 0 && c.stride == 1;
  if (!few) {
    const KvPair all = no_gradients(gradients.k, ctx);
    scatter(need, Side::owner, all.k, half(message, 0), ctx);
    scatter(need, Side::owner, all.v, half(message, 1), ctx);
    return add(gradients.both, all.both, ctx);
  }
  for (int i = 0; i < 2; ++i)
    for_copies(need, Side::owner, i == 0 ? gradients.k : gradients.v, half(message, i),
               [&](const Tensor& part, const Tensor& of, const RowMove& m) {
                 add(of.narrow(0, m.first, m.count), part, ctx);
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
