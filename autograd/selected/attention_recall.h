#pragma once
// Measures, in watched steps, the share of attention's pairs and weights that the kept blocks have
// (kernels/attention/selected/attention_recall.h).

#include "autograd/context_exchange.h"

namespace ring {

// Sums statistics over attention calls that have already run, given all arguments. Overwrites the calls' output.
class RecallStats {
 public:
  // heads, kv_heads: this process's head counts.
  RecallStats(std::int64_t heads, std::int64_t kv_heads, const ExecContext&);

  // Adds a call for some KV heads over whole documents.
  void add(const Attention&, KvHeads);
  // Adds a call for all heads and this rank's rows. Gathers the keys of all ranks. Collective.
  void add(const Attention&, const std::shared_ptr<const ContextShards>&, ContextExchange&);

  // Stores f32 [2 Hq + 3]: the sums of the shares by query head, the number of rows by query head, then, over all KV
  // heads, the numbers of kept pairs, of causal dense pairs, and of pairs with pools.
  void copy_to(const Tensor& sums) const;

 private:
  Tensor pairs_of(std::int64_t kv_head) const { return pairs_.narrow(0, kv_head, 1).view({3}); }

  const ExecContext& ctx_;
  Tensor shares_, rows_, pairs_;  // [Hq], [Hq], [Hk,3]; a group of heads stores its pairs at its first KV head
};

}  // namespace ring
