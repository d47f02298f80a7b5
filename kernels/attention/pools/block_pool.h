#pragma once
#include "kernels/kernel.h"

namespace ring {

// Rows [first, first + count) of a tensor, divided into blocks. If leading_gap > 0, the first block is short: it lacks
// its first `leading_gap` rows. Block j becomes row out + j of the result.
struct PoolSegment {
  std::int32_t first = 0, count = 0, leading_gap = 0, out = 0;
  std::int32_t blocks(std::int32_t block) const { return count == 0 ? 0 : (leading_gap + count + block - 1) / block; }
};

// Means over the rows of blocks, summed over the heads of each of G groups:
//   out[block, g] = sum over rows n of the block and heads h in [g H/G, (g + 1) H/G) of x[n, h] / (rows of the block)
// x [N,H,D], f32 or bf16, any strides with unit last dim; out [blocks,G,D], f32 or of x's type, contiguous. out may
// share storage with x if no rows overlap. Accumulates in f32, in a fixed order.
struct BlockPool {
  Tensor x, out;
  std::vector<PoolSegment> rows;
  std::int32_t block = 128;
};
inline Cost cost(const BlockPool& a) { return cost_of(a.x, {a.x, a.out}); }
inline constinit Kernel<BlockPool> block_pool_kernel{"block_pool"};

// The gradient of BlockPool with G = H: dx[n, h] += dout[block of n, h] / (rows of the block).
// dout [blocks,H,D] f32, contiguous; dx [N,H,D] f32, any strides with unit last dim. No row of dx may be in two blocks.
struct BlockPoolBackward {
  Tensor dout, dx;
  std::vector<PoolSegment> rows;
  std::int32_t block = 128;
};
inline Cost cost(const BlockPoolBackward& a) { return cost_of(a.dx, {a.dout, a.dx, a.dx}); }
inline constinit Kernel<BlockPoolBackward> block_pool_backward_kernel{"block_pool_backward"};

// Throw Error if shapes do not fit, or if a tensor lacks some of the rows.
void check(const BlockPool&);
void check(const BlockPoolBackward&);

}  // namespace ring
