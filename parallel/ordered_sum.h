#pragma once
// Sums over a group in rank order, on any backend. NCCL gives every rank of a group the same bits, but groups on other
// GPUs may add in another order. So what replicas each add over a group of their own, and must agree on to the bit, is
// gathered, and added by everybody. For little: each rank gets everything.

#include <vector>

#include "comm/communicator.h"
#include "kernels/kernel.h"

namespace ring {

// In place; contiguous, f32 or bf16, which is added in f32 and rounded once. The same list on every rank of the group.
void sum_in_order(const std::vector<Tensor>& tensors, Communicator& group, const ExecContext&);

}  // namespace ring
