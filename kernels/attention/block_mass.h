#pragma once
#include "kernels/attention/pattern.h"
#include "kernels/attention/selection.h"
#include "kernels/kernel.h"

namespace ring {

// Where attention goes, by blocks: the mean weight that block i of queries gives each block j of keys that it keeps,
//   mass[i, g, j] = mean over the rows t of block i and the query heads h of KV head g of
//                   sum over u in block j, u <= t, of exp(scale q[t,h] . k[u,g] - lse[h,t])
// and 0 where j is not kept. With the log-sum-exp of attention over this selection each row sums to 1; with that of
// attention over more keys, such as dense attention, to the share of it that the kept blocks hold.
// q [N,Hq,D], k [N,Hk,D], lse f32 [Hq,N]: as attention had and made them (kernels/attention/attention.h); the spans are
// whole documents, the pattern has blocks and is causal. mass f32 [rows,Hk,blocks], contiguous, a row for each row of
// the selection, with room for the blocks of the longest document; all of it is written. Deterministic.
// Where a process has some of the queries, `queries` has a part of each document, whose rows are q's, and the selection
// says which rows are whose. What these queries give to the mean over the whole block is then added to `mass`, which
// may lack the rest; rows without such queries stay as they are.
struct BlockMass {
  Tensor q, k, lse, mass;
  std::vector<Span> spans;
  float scale = 1;
  Pattern pattern;
  BlockSelection selection;
  std::vector<Span> queries{};  // one for each of the spans; empty: the spans themselves, of k and q alike

  bool of_parts() const { return !queries.empty(); }
  const std::vector<Span>& query_spans() const { return of_parts() ? queries : spans; }
};
// One product for each kept pair.
Cost cost(const BlockMass&);
inline constinit Kernel<BlockMass> block_mass_kernel{"block_mass"};

// Error: shapes, types, spans or a selection that do not fit. Names the tensor.
void check(const BlockMass&);

}  // namespace ring
