#pragma once
// Assignment of the pools of sharded documents to ranks, and the tokens to send for them. A pure function of the
// shards, so that all ranks agree without a message.

#include "autograd/context_exchange.h"
#include "kernels/attention/pools/block_pool.h"
#include "kernels/row_copy.h"

namespace ring {

// The pools of one size. The rank that holds a pool's first token makes the pool.
struct PoolPlan {
  std::int32_t size = 0;  // tokens per pool
  // Distribution of the pools, described like sharded rows: each rank holds the pools that it makes.
  ContextShards pools;
  // The pools that this rank makes; PoolSegment::out is a pool's index among them. whole: pools whose tokens are
  // adjacent rows of this rank. parts: the other pools; their tokens are gathered in a tensor with part_rows rows.
  std::vector<PoolSegment> whole, parts;
  std::int64_t part_rows = 0;
  std::vector<RowMove> own;  // rows of this rank that are copied to the tensor of part_rows rows

  // Tokens that this rank exchanges with a peer to make pools.
  struct Message {
    int peer = 0;
    std::int64_t count = 0;  // number of rows
    // sends: from this rank's rows into the message. receives: from the message into the tensor of part_rows rows.
    std::vector<RowMove> moves;
  };
  std::vector<Message> sends, receives;
  bool any_travels = false;  // true if any two ranks exchange tokens
};

PoolPlan pool_plan(const ContextShards&, std::int32_t size);

}  // namespace ring
