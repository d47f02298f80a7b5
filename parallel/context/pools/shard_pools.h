#pragma once
// Pools of sharded documents, made of the same tokens in the same order as on a single process: the rank that holds a
// pool's first token receives the other tokens, and all ranks get all pools. In backward, gradients of pools are summed
// over the ranks, and gradients of tokens are sent to the ranks that hold them.

#include "kernels/attention/pools/pool_keys.h"
#include "parallel/context/exchange.h"
#include "parallel/context/pools/pool_plan.h"

namespace ring {

using PoolPlans = std::vector<PoolPlan>;  // one plan per pool size
PoolPlans pool_plans(const ContextShards&, const std::vector<std::int32_t>& sizes);

// Returns all pools of the sharded sequences, for attention of this rank's queries. The plans, the exchange and the
// context must outlive the result. Collective; so is PoolKeys::backward of the result.
std::vector<PoolKeys> pools_of_shards(const PoolSource&, const PoolPlans&, const ContextShards&, ContextParallel&,
                                      const ExecContext&);

}  // namespace ring
