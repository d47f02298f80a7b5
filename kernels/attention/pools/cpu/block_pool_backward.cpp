// The gradient of block means. Each task computes one block.

#include <algorithm>

#include "kernels/attention/cpu/common.h"
#include "kernels/attention/pools/block_pool.h"

namespace ring::cpu {
namespace {

void add_block(const BlockPoolBackward& a, const PoolSegment& r, std::int64_t block) {
  const Heads dx = heads_of(a.dx), dout = heads_of(a.dout);
  const std::int64_t start = block * a.block - r.leading_gap;
  const std::int64_t first = std::max<std::int64_t>(0, start), end = std::min<std::int64_t>(r.count, start + a.block);
  const float share = 1 / static_cast<float>(end - first);
  for (std::int64_t n = first; n < end; ++n)
    for (std::int64_t h = 0; h < dx.heads; ++h) {
      const float* from = dout.at(r.out + block, h);
      float* to = dx.at(r.first + n, h);
      for (std::int64_t i = 0; i < dx.dim; ++i) to[i] += share * from[i];
    }
}

void run(const BlockPoolBackward& a, const ExecContext& ctx) {
  check(a);
  for (const PoolSegment& r : a.rows)
    ctx.stream.pool().parallel_for(r.blocks(a.block), 1, [&](std::int64_t begin, std::int64_t end, int) {
      for (std::int64_t block = begin; block < end; ++block) add_block(a, r, block);
    });
}

const bool added = block_pool_backward_kernel.add(Backend::cpu, {"blocks", run});

}  // namespace
}  // namespace ring::cpu
