#pragma once
// Base class of ring and gather, the schedules that move keys to the queries: handles block selection, pools and
// watches around attention over the pattern's pairs.

#include <memory>
#include <vector>

#include "parallel/context/exchange.h"
#include "parallel/context/heads.h"
#include "parallel/context/key_references.h"
#include "parallel/context/plan.h"
#include "parallel/context/pools.h"

namespace ring {

// The rows that each rank holds, and the referenced keys of other ranks.
struct KeyShards {
  std::shared_ptr<const ContextShards> shards;
  KeyReferences referenced;
};

class KeySchedule : public ContextParallel {
 public:
  BlockSelection forward(const PooledAttention&, const std::shared_ptr<const ContextShards>&, const ExecContext&,
                         const AttentionWatch&) final;
  void backward(const PooledAttentionBackward&, const std::shared_ptr<const ContextShards>&, const ExecContext&) final;
  // Returns the part of the block selection that this rank makes: all heads and documents, but only its own query rows.
  SelectionPart selection_part(const std::shared_ptr<const ContextShards>& shards, const Pattern& pattern,
                               std::int64_t kv_heads) final {
    return {{0, kv_heads}, pattern, shards->documents, true};
  }

 protected:
  KeySchedule(Communicator& comm, ContextKeys keys, ContextMessages messages)
      : ContextParallel(comm), keys_(keys), messages_(messages) {}
  // Compute attention over the (query, key) pairs of a pattern without pools. If the pattern selects blocks,
  // Attention::selection must be set.
  virtual void attend(const Attention&, const KeyShards&, const ExecContext&) = 0;
  virtual void attend_backward(const AttentionBackward&, const KeyShards&, const ExecContext&) = 0;
  // Return the types of messages (rows.h) with keys and values of this type, and with their gradients.
  DType key_message(DType keys) const { return messages_ == ContextMessages::fp8 ? DType::u8 : keys; }
  DType gradient_message() const { return messages_ == ContextMessages::exact ? DType::f32 : DType::bf16; }
  // Returns a buffer to receive a message (rows.h) with the requested keys and values, or with their gradients. like: a
  // tensor [N,H,D] with their heads and head dimension.
  Tensor receive_message(const KeyRequest&, const Tensor& like, DType, const ExecContext&);

 private:
  // Returns the call with a selection: the given one, or a new one if the pattern selects. The selection covers only
  // this rank's query rows. Only the block means of keys and queries are exchanged, which are small.
  PooledAttention with_selection(PooledAttention, const ContextShards&, const ExecContext&);
  // Gathers the selections of all ranks. Returns unknown references if the pattern does not select, or if all keys are
  // sent.
  KeyReferences referenced_keys(const Pattern&, const BlockSelection&, const ContextShards&, const ExecContext&);
  // Returns the pools of sharded sequences, for attend_to_pools() (kernels/attention/pools/pool_keys.h).
  std::vector<PoolKeys> shared_pools(const PoolSource&, const std::shared_ptr<const ContextShards>&,
                                     const ExecContext&);
  // Calls the watch, if set, with the call and its results. Gathers the keys of whole documents for it.
  void call_watch(const PooledAttention&, const std::shared_ptr<const ContextShards>&, const ExecContext&,
                  const AttentionWatch&);

  ContextKeys keys_;
  ContextMessages messages_;
  HeadPatterns watched_patterns_;
  PoolPlanCache pool_plans_;
};

}  // namespace ring
