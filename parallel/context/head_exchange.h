#pragma once
// The schedule all_to_all: each rank receives all rows of some heads, and sends the results back.

#include <functional>
#include <vector>

#include "parallel/context/exchange.h"

namespace ring {

// Tensors of a rank: its n rows of all heads, or all N rows of a group of its heads.
struct HeadTensors {
  std::vector<Tensor> by_row;   // [n,H,D]; all inputs have the same type and D
  std::vector<Tensor> by_head;  // f32 [H,n]; an undefined one is undefined in every group
};

// Computes the results for a group of KV heads, numbered among the heads of all ranks. Rows are in the micro-batch's
// order.
using ComputeHeads = std::function<void(KvHeads, const HeadTensors& inputs, const HeadTensors& results)>;

// Sets what the forward and the backward of a group of KV heads share, for all rows: the operands, and the dropout
// masks that one process would use. Args is Attention or AttentionBackward. all: this rank's rows of all heads.
// inputs.by_row: q, k, v, ...
template <class Args>
void set_heads(Args& some, const Args& all, KvHeads heads, const HeadTensors& inputs) {
  some.q = inputs.by_row[0], some.k = inputs.by_row[1], some.v = inputs.by_row[2];
  some.scale = all.scale, some.soft_cap = all.soft_cap;
  some.dropout = all.dropout;
  some.dropout.rows = {};
  some.dropout.first_head += heads.first * (all.q.dim(1) / all.k.dim(1));
}

// Overwrites this rank's rows of the results. A rank's heads are split into groups: one group is in transfer while the
// previous one is computed. Throws Error if the ranks do not divide the KV heads. Collective.
void exchange_heads(const HeadTensors& inputs, const HeadTensors& results, std::int64_t kv_heads, const ContextShards&,
                    ContextTransfers&, const ComputeHeads&, const ExecContext&);

}  // namespace ring
