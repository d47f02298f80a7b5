// Gradient of block means.
#include "kernels/attention/cuda/documents.cuh"
#include "kernels/attention/pools/block_pool.h"
#include "kernels/cuda/launch.h"

namespace ring::cuda {
namespace {

struct Gradients {
  const float* dout;
  float* dx;
  std::int64_t row, head;  // strides of dx, in elements
  int heads, dim, block;
};

// Adds the gradient: one thread block per pooled block, whose threads take the columns of a row in turn.
__global__ void __launch_bounds__(kBlock)
    add_means(const __grid_constant__ Documents<PoolSegment> documents, Gradients p) {
  const int d = documents.find(static_cast<int>(blockIdx.x)),
            block = static_cast<int>(blockIdx.x) - documents.before[d];
  const PoolSegment r = documents.rows[d];
  const int start = block * p.block - r.leading_gap, first = max(0, start), end = min(r.count, start + p.block);
  const int width = p.heads * p.dim;
  const float* const dout = p.dout + (std::int64_t{r.out} + block) * width;
  const float share = 1 / static_cast<float>(end - first);
  for (int i = static_cast<int>(threadIdx.x); i < width; i += kBlock) {
    const float mean = __fmul_rn(share, dout[i]);  // rounded, never fused with the additions
    float* const to = p.dx + i / p.dim * p.head + i % p.dim;
    for (int n = first; n < end; ++n) to[(std::int64_t{r.first} + n) * p.row] += mean;
  }
}

void run(const BlockPoolBackward& a, const ExecContext& ctx) {
  check(a);
  const Gradients p{device_data<float>(a.dout),    device_data<float>(a.dx),      a.dx.stride(0), a.dx.stride(1),
                    static_cast<int>(a.dx.dim(1)), static_cast<int>(a.dx.dim(2)), a.block};
  for_documents(
      a.rows, [&](const PoolSegment& r) { return r.blocks(a.block); },
      [&](const Documents<PoolSegment>& some) { launch(ctx, {grid_of(some.before[some.count])}, add_means, some, p); });
}

const bool added_block_pool_backward = block_pool_backward_kernel.add(Backend::cuda, {"blocks", run});

}  // namespace
}  // namespace ring::cuda
