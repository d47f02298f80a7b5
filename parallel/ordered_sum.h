#pragma once
// Sums over a group in rank order, on any backend. NCCL gives every rank of a group bit-identical results, but a group
// on different GPUs may add in a different order. Replicas that each sum over their own group, but need bit-identical
// results, therefore gather all values and add them on every rank. For small tensors: each rank receives everything.

#include <vector>

#include "comm/communicator.h"
#include "kernels/kernel.h"

namespace ring {

// Sums in place. Tensors are contiguous and either f32, or bf16, which is added in f32 and rounded once. Collective;
// every rank of the group must pass the same list.
void sum_in_order(const std::vector<Tensor>& tensors, Communicator& group, const ExecContext&);

}  // namespace ring
