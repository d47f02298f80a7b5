#include "parallel/context/rows.h"

#include "kernels/elementwise.h"

namespace ring {
namespace {

std::int64_t heads_of(const RowCopy& c, std::int64_t all) { return c.head < 0 ? all : 1; }

enum class Side : std::uint8_t { owner, receiver };

// fn(the copy's rows in the message [count,heads,D], its heads of t, its move from t into the message)
template <class Fn>
void for_copies(const NeededKeys& need, Side side, const Tensor& t, const Tensor& message, const Fn& fn) {
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

void gather(const NeededKeys& need, Side side, const Tensor& t, const Tensor& message, const Stream& stream) {
  for_copies(need, side, t, message,
             [&](const Tensor& part, const Tensor& of, const RowMove& m) { move_rows(part, of, m, stream); });
}
void scatter(const NeededKeys& need, Side side, const Tensor& t, const Tensor& message, const Stream& stream) {
  for_copies(need, side, t, message, [&](const Tensor& part, const Tensor& of, const RowMove& m) {
    move_rows(of, part, {.to = m.first, .count = m.count, .to_step = m.step}, stream);
  });
}

Tensor half(const Tensor& message, int i) {
  const std::int64_t size = message.numel() / 2;
  return message.narrow(0, i * size, size);
}

Tensor message_of(const NeededKeys& need, const Tensor& like, DType type, const Context& ctx) {
  return ctx.empty({2 * need.row_heads(like.dim(1)) * like.dim(2)}, type);
}

void add(const Tensor& to, const Tensor& from, const Context& ctx) {
  const Tensor a = to.view({to.numel()}), b = from.view({from.numel()});
  axpby_kernel({b, a, a, 1, 1}, ctx);
}

constexpr std::size_t kMostAdditions = 16;  // else all rows are added at once

}  // namespace

void move_rows(const Tensor& dst, const Tensor& src, const RowMove& m, const Stream& stream) {
  RING_CHECK(dst.dtype() == src.dtype() && dst.dim(1) == src.dim(1) && dst.dim(2) == src.dim(2), "rows of ",
             describe(src), " do not fit into ", describe(dst));
  if (m.count == 0) return;
  const auto unit = static_cast<std::int64_t>(size_of(src.dtype()));
  const std::int64_t dim = src.dim(2);
  const bool dense = dst.dim(1) == 1 || (dst.stride(1) == dim && src.stride(1) == dim);
  const std::int64_t parts = dense ? 1 : dst.dim(1), width = dense ? dst.dim(1) * dim : dim;
  for (std::int64_t h = 0; h < parts; ++h)
    stream.impl().copy_rows(dst.raw() + (m.to * dst.stride(0) + h * dst.stride(1)) * unit,
                            static_cast<std::size_t>(m.to_step * dst.stride(0) * unit),
                            src.raw() + (m.first * src.stride(0) + h * src.stride(1)) * unit,
                            static_cast<std::size_t>(m.step * src.stride(0) * unit),
                            static_cast<std::size_t>(width * unit), static_cast<std::size_t>(m.count));
}

KeyPair key_pair(const Tensor& both) {
  const auto part = [&](int i) { return both.narrow(0, i, 1).view({both.dim(1), both.dim(2), both.dim(3)}); };
  return {both, part(0), part(1)};
}

Tensor pack(const NeededKeys& need, const Tensor& k, const Tensor& v, const Context& ctx) {
  const Tensor message = message_of(need, k, k.dtype(), ctx);
  gather(need, Side::owner, k, half(message, 0), ctx.stream);
  gather(need, Side::owner, v, half(message, 1), ctx.stream);
  return message;
}

KeyPair unpack(const NeededKeys& need, const Tensor& message, std::int64_t kv_heads, const Context& ctx) {
  const std::int64_t dim = message.numel() / 2 / need.row_heads(kv_heads);
  const Shape shape = {2, need.rows, kv_heads, dim};
  if (need.whole) return key_pair(message.view(shape));
  KeyPair out = key_pair(ctx.zeros(shape, message.dtype()));
  scatter(need, Side::receiver, out.k, half(message, 0), ctx.stream);
  scatter(need, Side::receiver, out.v, half(message, 1), ctx.stream);
  return out;
}

Tensor pack_home(const NeededKeys& need, const KeyPair& gradients, const Context& ctx) {
  if (need.whole) return gradients.both.view({gradients.both.numel()});
  const Tensor message = message_of(need, gradients.k, DType::f32, ctx);
  gather(need, Side::receiver, gradients.k, half(message, 0), ctx.stream);
  gather(need, Side::receiver, gradients.v, half(message, 1), ctx.stream);
  return message;
}

void add_home(const NeededKeys& need, const Tensor& message, const KeyPair& gradients, const Context& ctx) {
  bool few = need.copies.size() <= kMostAdditions;
  for (const RowCopy& c : need.copies) few = few && c.head < 0 && c.stride == 1;
  if (!few) {
    const KeyPair all = key_pair(ctx.zeros(gradients.both.shape()));
    scatter(need, Side::owner, all.k, half(message, 0), ctx.stream);
    scatter(need, Side::owner, all.v, half(message, 1), ctx.stream);
    return add(gradients.both, all.both, ctx);
  }
  for (int i = 0; i < 2; ++i)
    for_copies(need, Side::owner, i == 0 ? gradients.k : gradients.v, half(message, i),
               [&](const Tensor& part, const Tensor& of, const RowMove& m) {
                 add(of.narrow(0, m.first, m.count), part, ctx);
               });
}

void store(const Tensor& dst, const Tensor& src, const Context& ctx) {
  Tensor rounded = src;
  if (dst.dtype() != src.dtype()) {
    rounded = ctx.empty(src.shape(), dst.dtype());
    cast_kernel({src, rounded}, ctx);
  }
  move_rows(dst, rounded, {.count = src.dim(0)}, ctx.stream);
}

}  // namespace ring
