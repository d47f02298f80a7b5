#include "parallel/context/heads.h"

#include <algorithm>

#include "parallel/context/rows.h"

namespace ring {
namespace {

// Returns some heads of a tensor [N,H,D]. per: heads of the tensor per KV head.
Tensor part(const Tensor& t, KvHeads heads, std::int64_t per) {
  return t.narrow(1, heads.first * per, heads.count * per);
}

// Restricts the arguments that forward and backward share to these KV heads and their query heads. Args is Attention or
// AttentionBackward; per: query heads per KV head.
template <class Args>
void narrow_to(Args& a, KvHeads heads, std::int64_t per, const Pattern& pattern, const ExecContext& ctx) {
  a.q = part(a.q, heads, per);
  a.k = part(a.k, heads, 1);
  a.v = part(a.v, heads, 1);
  a.out = part(a.out, heads, per);
  a.lse = a.lse.narrow(0, heads.first * per, heads.count * per);
  a.dropout.first_head += heads.first * per;
  a.pattern = pattern;
  a.selection = of_heads(a.selection, heads, pattern, ctx);
}

void narrow_carry(Tensor& carry, KvHeads heads, std::int64_t per) {
  if (carry.defined()) carry = part(carry, heads, per);
}

}  // namespace

Attention of_heads(const Attention& all, KvHeads heads, const Pattern& pattern, const ExecContext& ctx) {
  Attention a = all;
  const std::int64_t per = all.q.dim(1) / all.k.dim(1);
  narrow_to(a, heads, per, pattern, ctx);
  narrow_carry(a.carry, heads, per);
  return a;
}

AttentionBackward of_heads(const AttentionBackward& all, KvHeads heads, const Pattern& pattern,
                           const ExecContext& ctx) {
  AttentionBackward a = all;
  const std::int64_t per = all.q.dim(1) / all.k.dim(1);
  narrow_to(a, heads, per, pattern, ctx);
  a.dout = part(a.dout, heads, per);
  a.dq = part(a.dq, heads, per);
  a.dk = part(a.dk, heads, 1);
  a.dv = part(a.dv, heads, 1);
  narrow_carry(a.carry_dq, heads, per);
  narrow_carry(a.carry_dk, heads, 1);
  narrow_carry(a.carry_dv, heads, 1);
  return a;
}

BlockSelection of_heads(const BlockSelection& all, KvHeads heads, const Pattern& pattern, const ExecContext& ctx) {
  if (!pattern.selects()) return {};
  if (heads.count == all.kept.dim(1)) return all;
  const Tensor kept = all.kept.narrow(1, heads.first, heads.count);
  BlockSelection some{ctx.empty(kept.shape(), DType::i32), all.rows};
  move_rows(some.kept, kept, {.count = kept.dim(0)}, ctx);
  return some;
}

void add_heads(BlockSelection& all, KvHeads own, const BlockSelection& part, KvHeads some, const ExecContext& ctx) {
  if (some.count == own.count) all = part;
  if (some.count == own.count || !part.kept.defined()) return;
  const std::int64_t rows = part.kept.dim(0);
  if (!all.kept.defined()) all.kept = ctx.zeros({rows, own.count, part.kept.dim(2)}, DType::i32);
  const KvHeads to = counted_from(own, some);
  move_rows(all.kept.narrow(1, to.first, to.count), part.kept, {.count = rows}, ctx);
}

std::int64_t heads_at_once(const ContextShards& shards, const Pattern& pattern, std::int64_t kv_heads, std::int64_t dim,
                           std::int64_t bytes) {
  if (!pattern.is_dense() && !pattern.blocks) return kv_heads;
  std::int64_t rows = 0;
  for (int r = 0; r < shards.ranks(); ++r) rows = std::max(rows, shards.tokens(r));
  const std::int64_t of_a_head = 2 * rows * dim * std::int64_t{sizeof(float)};
  std::int64_t heads = kv_heads;
  while (heads > 1 && (kv_heads % heads != 0 || heads * of_a_head > bytes)) --heads;
  return heads;
}

}  // namespace ring
