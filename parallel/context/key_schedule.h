#pragma once
// The schedules in which queries stay and keys come to them: ring and gather. What is the same for both stands here,
// around attention over the pairs of a pattern: selecting blocks, pools, and showing calls.

#include <memory>
#include <vector>

#include "parallel/context/exchange.h"
#include "parallel/context/heads.h"
#include "parallel/context/key_references.h"
#include "parallel/context/plan.h"
#include "parallel/context/pools.h"

namespace ring {

// The rows that each rank holds, and the keys of other ranks that are referenced.
struct KeyShards {
  std::shared_ptr<const ContextShards> shards;
  KeyReferences referenced;
};

class KeySchedule : public ContextParallel {
 public:
  BlockSelection forward(const PooledAttention&, const std::shared_ptr<const ContextShards>&, const ExecContext&,
                         const AttentionWatch&) final;
  void backward(const PooledAttentionBackward&, const std::shared_ptr<const ContextShards>&, const ExecContext&) final;
  // Returns all heads and documents, for this rank's queries.
  SelectionPart selection_part(const std::shared_ptr<const ContextShards>& shards, const Pattern& pattern,
                               std::int64_t kv_heads) final {
    return {{0, kv_heads}, pattern, shards->documents, true};
  }

 protected:
  KeySchedule(Communicator& comm, ContextKeys keys) : ContextParallel(comm), keys_(keys) {}
  // Attention over the pairs of the pattern, which has no pools. If the pattern selects, the selection is given.
  virtual void attend(const Attention&, const KeyShards&, const ExecContext&) = 0;
  virtual void attend_backward(const AttentionBackward&, const KeyShards&, const ExecContext&) = 0;
  // Returns a buffer for a message of keys and values (rows.h) like these [N,H,D], or of their gradients.
  Tensor receive_message(const NeededKeys&, const Tensor& like, DType, const ExecContext&);

 private:
  // Returns the call with its selection: the given one, or a new one if the pattern selects. Each rank has the rows of
  // its own queries. Only means of keys and queries by block travel, which are small.
  PooledAttention with_selection(PooledAttention, const ContextShards&, const ExecContext&);
  // Gathers what all ranks selected, as bits. Returns nothing known if the pattern selects nothing, or if all keys
  // travel.
  KeyReferences referenced_keys(const Pattern&, const BlockSelection&, const ContextShards&, const ExecContext&);
  // Returns the pools of parts of sequences, for carry_pools() (kernels/attention/pool_keys.h).
  std::vector<PoolKeys> shared_pools(const PoolSource&, const std::shared_ptr<const ContextShards>&,
                                     const ExecContext&);
  // Calls the watch with the call and its results. The keys of whole documents are gathered for it.
  void show(const PooledAttention&, const std::shared_ptr<const ContextShards>&, const ExecContext&,
            const AttentionWatch&);

  ContextKeys keys_;
  HeadPatterns watched_patterns_;
  PoolPlanCache pool_plans_;
};

}  // namespace ring
