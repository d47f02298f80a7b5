#pragma once
// Pools of documents that are cut among ranks, made as by one process, of the same tokens in the same order: whoever
// has a pool's first token gets its other ones, and all ranks get all pools. The way back: gradients of pools are
// summed over the ranks, and those of tokens go to whoever has them.

#include <map>
#include <memory>

#include "comm/communicator.h"
#include "kernels/attention/pool_keys.h"
#include "parallel/context/pool_plan.h"

namespace ring {

using PoolPlans = std::vector<PoolPlan>;  // by size
PoolPlans pool_plans(const ContextShards&, const std::vector<std::int32_t>& sizes);

// Made once and kept as long as the same shards are worked on, as PlanCache's are.
class PoolPlanCache {
 public:
  // The reference is good until other shards are asked for.
  const PoolPlans& get(const std::shared_ptr<const ContextShards>& shards, const std::vector<std::int32_t>& sizes);

 private:
  std::shared_ptr<const ContextShards> shards_;
  std::map<std::vector<std::int32_t>, PoolPlans> plans_;
};

// How tokens of pools travel; queued behind what the stream has, and what is queued next waits for it. All ranks call
// it in the same order.
using SendTokens = std::function<void(const std::vector<Transfer>& sends, const std::vector<Transfer>& receives)>;

// For this rank's queries. The plans, the exchange and the context live as long as what is returned. All ranks call it
// together, and PoolKeys::backward.
std::vector<PoolKeys> pools_of_shards(const PoolSource&, const PoolPlans&, const ContextShards&, ContextExchange&,
                                      const SendTokens&, const ExecContext&);

}  // namespace ring
