#pragma once
// How much attention blocks get by how far back they lie.

#include <vector>

#include "kernels/attention/attention.h"

namespace ring {

// Sums of a block mass (block_mass.h) over the blocks of queries, by distance d = query block - key block:
//   out[0, g, d] = sum over the rows i that keep block i - d of mass[i, g, i - d],   out[1, g, d] = how many rows these
//   are
// mass f32 [rows,Hk,blocks], contiguous, in the rows of the selection; out f32 [2,Hk,distances], at least as many as
// the longest document has blocks. Sums have a fixed order.
struct DistanceMass {
  Tensor mass, out;
  BlockSelection selection;
  std::vector<Span> spans;  // whole documents
  Pattern pattern;
};
inline Cost cost(const DistanceMass& a) { return cost_of(a.mass, {a.mass, a.out}); }
inline constinit Kernel<DistanceMass> distance_mass_kernel{"distance_mass"};
void check(const DistanceMass&);  // Error: shapes, or spans that the selection does not have

// What rules that go by positions keep, as a selection, which comes from the host; of KV head g without the blocks
// before first[g], if there is such a number.
BlockSelection selection_of_rules(const Pattern&, const std::vector<Span>&, std::int64_t kv_heads,
                                  const std::vector<std::int32_t>& first, const ExecContext&);

// DistanceMass of attention over such a pattern, with this call's q, k, spans and scale, [2,Hk,distances]: attention is
// computed once more for the log-sum-exps. Blocks before first[g] do not count: attention to the start of a text says
// nothing of a distance. Where the queries are parts of documents, whose keys the call has whole: what these queries
// give to the sums, and the rows of blocks whose first token is among them, so that parts add up to the whole.
Tensor distance_masses(const Attention&, std::int64_t distances, const std::vector<std::int32_t>& first,
                       const ExecContext&);

}  // namespace ring
