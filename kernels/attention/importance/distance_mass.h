#pragma once
// Attention mass by distance: how much attention a key block gets, depending on how many blocks back it is.

#include <vector>

#include "kernels/attention/attention.h"

namespace ring {

// Sums block masses (block_mass.h) by distance d = query block - key block:
//   out[0, g, d] = sum of the mass of block i - d over the query blocks i that keep it
//   out[1, g, d] = number of these query blocks
// mass f32 [rows,Hk,room] (room: capacity of a list), contiguous, in the order of the blocks of `massed`, the selection
// for which the mass was computed. `selection`, whose blocks are counted, has the same rows as `massed`, and `massed`
// must contain all its blocks. out f32 [2,Hk,distances], contiguous, with distances >= the blocks of the longest
// document. Sums have a fixed order.
struct DistanceMass {
  Tensor mass, out;
  BlockSelection selection, massed;
  std::vector<Span> spans;  // spans of whole documents
  Pattern pattern;
};
inline Cost cost(const DistanceMass& a) { return cost_of(a.mass, {a.mass, a.out}); }
inline constinit Kernel<DistanceMass> distance_mass_kernel{"distance_mass"};
void check(const DistanceMass&);  // throws Error if shapes do not fit, or if the selection lacks some of the spans

// Returns a selection of the blocks that position-based rules keep, made on the host and copied to the device. For KV
// head g it omits the blocks before first[g]; `first` may be empty.
BlockSelection selection_of_rules(const Pattern&, const std::vector<Span>&, std::int64_t kv_heads,
                                  const std::vector<std::int32_t>& first, const ExecContext&);

// Returns DistanceMass::out [2,Hk,distances] for attention over a pattern with position-based rules. Uses q, k, spans
// and scale of the call, and recomputes attention for the log-sum-exps. Blocks before first[g] do not count, because
// attention to the start of a document says nothing about a distance.
// The keys must be whole documents; the queries may be parts of them. For parts, returns the contribution of these
// queries to the sums, and counts the query blocks whose first token is among them. Adding up the results of all parts
// gives the result for whole documents.
Tensor distance_masses(const Attention&, std::int64_t distances, const std::vector<std::int32_t>& first,
                       const ExecContext&);

}  // namespace ring
