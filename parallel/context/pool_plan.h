#pragma once
// Who makes which pools of documents that are cut among ranks, and of whose tokens: a pure function of who holds what,
// so that all ranks agree without a message.

#include "autograd/context_exchange.h"
#include "kernels/attention/block_pool.h"
#include "kernels/row_copy.h"

namespace ring {

// The pools of one size. Whoever has the first token of a pool makes it.
struct PoolPlan {
  std::int32_t size = 0;  // tokens
  // The pools as rows that are cut among the ranks: each holds those that it makes.
  ContextShards pools;
  // This rank's pools, as rows `out` of those that it makes: those of neighbouring rows of its own, and the others,
  // whose tokens meet in a tensor of so many rows.
  std::vector<PooledRows> whole, parts;
  std::int64_t part_rows = 0;
  std::vector<RowMove> own;  // rows of this rank that go to that tensor

  // Tokens of one pool that another rank makes, or that another one has.
  struct Message {
    int peer = 0;
    std::int64_t count = 0;      // rows
    std::vector<RowMove> moves;  // from this rank's rows into the message, or out of it into the tensor
  };
  std::vector<Message> sends, receives;
  bool any_travels = false;  // between any two ranks
};

PoolPlan pool_plan(const ContextShards&, std::int32_t size);

}  // namespace ring
