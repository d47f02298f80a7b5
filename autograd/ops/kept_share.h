#pragma once
// Measures, in watched steps, what share of attention's pairs and weights the kept blocks have
// (kernels/attention/kept_share.h).

#include "autograd/ops/attend.h"

namespace ring {

// Sums over attention that was computed, with all its arguments; the output is overwritten.
class KeptSums {
 public:
  // kv_heads: of this process.
  KeptSums(std::int64_t heads, std::int64_t kv_heads, const ExecContext&);

  // These of the KV heads, over whole documents.
  void add(const Attention&, KvHeads);
  // All heads, of this rank's rows. With the keys of all ranks, which come here for it.
  void add(const Attention&, const std::shared_ptr<const ContextShards>&, ContextExchange&);

  // f32 [2 Hq + 3]: by query heads the sums of the shares and how many rows these are, then the pairs that are kept,
  // those of causal dense attention, and those with pools, over all KV heads.
  void store(const Tensor& sums) const;

 private:
  Tensor pairs_of(std::int64_t kv_head) const { return pairs_.narrow(0, kv_head, 1).view({3}); }

  const ExecContext& ctx_;
  Tensor shares_, rows_, pairs_;  // [Hq], [Hq], [Hk,3]: pairs by the first head of a group
};

}  // namespace ring
