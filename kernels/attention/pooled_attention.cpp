#include "kernels/attention/pooled_attention.h"

#include <utility>

#include "kernels/attention/pools.h"

namespace ring {
namespace {

// The means of one size.
struct Pools {
  std::int32_t size;
  std::vector<PooledRows> rows;
  std::vector<Span> spans;
  Tensor keys, values;

  Pools(std::int32_t size, const Tensor& k, const Tensor& v, const std::vector<Span>& documents, const ExecContext& ctx)
      : size(size), rows(pooled_rows(documents, size)), spans(pool_spans(documents, size)) {
    const Shape shape{spans.empty() ? 0 : spans.back().first + spans.back().count, k.dim(1), k.dim(2)};
    keys = ctx.empty(shape, k.dtype()), values = ctx.empty(shape, v.dtype());
    if (none()) return;
    block_pool_kernel({k, keys, rows, size}, ctx);
    block_pool_kernel({v, values, rows, size}, ctx);
  }
  bool none() const { return keys.dim(0) == 0; }
};

// A call over one size; its results are the caller's to place.
template <class Args>
Args over(const Pools& pools, Args whole) {
  whole.k = pools.keys, whole.v = pools.values, whole.keys = pools.spans;
  whole.pattern = {.pool = pools.size};
  whole.selection = {};
  return whole;
}

// Into `out` f32, which may hold what others gave.
Attention over(const Pools& pools, const Attention& whole, const Tensor& out, bool first) {
  Attention one = over(pools, whole);
  one.out = out;
  if (!first) one.carry = out;
  return one;
}

AttentionBackward over(const Pools& pools, const AttentionBackward& whole, const Tensor& dq, bool first) {
  AttentionBackward one = over(pools, whole);
  one.dq = dq;
  if (!first) one.carry_dq = dq;
  return one;
}

template <class Args>
void check_pooled(const Args& a, bool carries) {
  check(a.pattern, "attention");
  RING_CHECK(a.dropout.rate == 0, "attention: dropout on weights with pools");
  RING_CHECK(!carries && a.queries == a.keys, "attention: pools of parts of documents");
}

}  // namespace

void pooled_attention(Attention args, const ExecContext& ctx) {
  if (args.pattern.pools.empty()) return attention_kernel(args, ctx);
  check_pooled(args, args.carry.defined());
  const std::vector<std::int32_t> sizes = std::exchange(args.pattern.pools, {});
  const Tensor sum = args.out.dtype() == DType::f32 && args.out.contiguous() ? args.out : ctx.empty(args.out.shape());
  bool first = true;
  for (const std::int32_t size : sizes) {
    const Pools pools(size, args.k, args.v, args.keys, ctx);
    if (pools.none()) continue;
    attention_kernel(over(pools, args, sum, first), ctx);
    first = false;
  }
  if (!first) args.carry = sum;
  attention_kernel(args, ctx);
}

void pooled_attention_backward(AttentionBackward args, const ExecContext& ctx) {
  if (args.pattern.pools.empty()) return attention_backward_kernel(args, ctx);
  check_pooled(args, args.carry_dq.defined() || args.carry_dk.defined());
  const std::vector<std::int32_t> sizes = std::exchange(args.pattern.pools, {});
  const Tensor dq = args.dq.dtype() == DType::f32 ? args.dq : ctx.empty(args.dq.shape());
  const Tensor dk = ctx.zeros(args.dk.shape()), dv = ctx.zeros(args.dv.shape());
  bool first = true;
  for (const std::int32_t size : sizes) {
    const Pools pools(size, args.k, args.v, args.keys, ctx);
    if (pools.none()) continue;
    AttentionBackward one = over(pools, args, dq, first);
    one.dk = ctx.empty(pools.keys.shape()), one.dv = ctx.empty(pools.values.shape());
    attention_backward_kernel(one, ctx);
    block_pool_backward_kernel({one.dk, dk, pools.rows, size}, ctx);
    block_pool_backward_kernel({one.dv, dv, pools.rows, size}, ctx);
    first = false;
  }
  if (!first) args.carry_dq = dq, args.carry_dk = dk, args.carry_dv = dv;
  attention_backward_kernel(args, ctx);
}

}  // namespace ring
