#pragma once
// Pools of sharded documents, made of the same tokens in the same order as on a single process: the rank that holds a
// pool's first token receives the other tokens, and all ranks get all pools. In backward, gradients of pools are summed
// over the ranks, and gradients of tokens are sent to the ranks that hold them.

#include <map>
#include <memory>

#include "comm/communicator.h"
#include "kernels/attention/pools/pool_keys.h"
#include "parallel/context/pool_plan.h"

namespace ring {

using PoolPlans = std::vector<PoolPlan>;  // one plan per pool size
PoolPlans pool_plans(const ContextShards&, const std::vector<std::int32_t>& sizes);

// Cache of plans, kept as long as the same shards are used (see PlanCache).
class PoolPlanCache {
 public:
  // The reference is valid until get() is called with different shards.
  const PoolPlans& get(const std::shared_ptr<const ContextShards>& shards, const std::vector<std::int32_t>& sizes);

 private:
  std::shared_ptr<const ContextShards> shards_;
  std::map<std::vector<std::int32_t>, PoolPlans> plans_;
};

// Exchanges tokens of pools. Collective. The exchange is ordered like a kernel on the stream: after all work queued
// before, and before all work queued later.
using SendTokens = std::function<void(const std::vector<Transfer>& sends, const std::vector<Transfer>& receives)>;

// Returns all pools of the sharded sequences, for attention of this rank's queries. The plans, the exchange and the
// context must outlive the result. Collective; so is PoolKeys::backward of the result.
std::vector<PoolKeys> pools_of_shards(const PoolSource&, const PoolPlans&, const ContextShards&, ContextExchange&,
                                      const SendTokens&, const ExecContext&);

}  // namespace ring
