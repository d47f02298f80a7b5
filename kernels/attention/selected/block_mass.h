#pragma once
#include "kernels/attention/pattern.h"
#include "kernels/attention/selection.h"
#include "kernels/kernel.h"

namespace ring {

// Attention mass per block: the mean probability that query block i gives to each key block that it keeps. For the n-th
// block j of its list,
//   mass[i, g, n] = mean over the rows t of block i and the query heads h of KV head g of
//                   sum over u in block j, u <= t, of exp(scale q[t,h] . k[u,g] - lse[h,t])
// and 0 beyond the list's end. If lse is the log-sum-exp over this selection, each row sums to 1. If lse covers more
// keys than the selection, e.g. in dense attention, each row sums to the kept blocks' share of the probability.
//   q, k, lse  [N,Hq,D], [N,Hk,D], f32 [Hq,N]: inputs and log-sum-exp of attention (kernels/attention/attention.h).
//   spans      whole documents; the pattern must have blocks and be causal.
//   mass       f32 [rows,Hk,room] (room: capacity of a list), contiguous, shaped as the selection; fully written.
// If a process has only some of the queries, `queries` has a part of each document (rows of q), and the selection must
// have `rows`. The contribution of these queries to the mean over the whole block is then added to `mass`, so that the
// processes' contributions can be summed; rows without such queries are left unchanged. If the call has all queries of
// these blocks, `spans` may also be parts of documents (`parts_of_keys`): parts before the queries, which end at the
// end of a block, or parts that end with the queries. Their contributions sum to the mass of the whole document.
// Deterministic.
struct BlockMass {
  Tensor q, k, lse, mass;
  std::vector<Span> spans;
  float scale = 1;
  Pattern pattern;
  BlockSelection selection;
  std::vector<Span> queries{};  // rows of q, one span per element of `spans`; if empty, `spans` are rows of q and k
  bool parts_of_keys = false;

  bool of_parts() const { return !queries.empty(); }
  const std::vector<Span>& query_spans() const { return of_parts() ? queries : spans; }
};
// Counts one dot product per kept pair and query head.
Cost cost(const BlockMass&);
inline constinit Kernel<BlockMass> block_mass_kernel{"block_mass"};

// Throws Error, naming the tensor, if shapes, types, spans or the selection do not fit.
void check(const BlockMass&);

}  // namespace ring
