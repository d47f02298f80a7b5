// The tensor-core kernels as candidates: bf16, rows of 16 aligned bytes.

#include "kernels/attention/cuda/work.cuh"
#include "kernels/cuda/device/vec.cuh"

namespace ring::cuda {
namespace {

// Strides reach a row of a tile in 32 bits, and a 16-byte piece of it must be aligned.
bool fits(const Tensor& t) {
  constexpr std::int64_t kLargest = 1 << 22;  // elements
  return t.defined() && t.dtype() == DType::bf16 && t.shape().size() == 3 && t.stride(2) == 1 && is_aligned(t.raw()) &&
         t.stride(0) % 8 == 0 && t.stride(1) % 8 == 0 && t.stride(0) >= 0 && t.stride(0) <= kLargest;
}

// A negative scale would turn the running maximum around.
bool fits(std::int64_t dim, float scale) { return dim % 8 == 0 && dim <= 256 && scale > 0; }

bool supports_forward(const Attention& a, const Context&) {
  return fits(a.q) && fits(a.k) && fits(a.v) && fits(a.out) && fits(a.q.dim(2), a.scale);
}
bool supports_backward(const AttentionBackward& a, const Context&) {
  for (const Tensor* t : {&a.q, &a.k, &a.v, &a.out, &a.dout, &a.dq, &a.dk, &a.dv})
    if (!fits(*t)) return false;
  return fits(a.q.dim(2), a.scale);
}

void run_forward(const Attention& args, const Context& ctx) {
  const std::int64_t dim = args.q.dim(2);
  if (dim <= 64) return run_mma_forward<64>(args, ctx);
  if (dim <= 96) return run_mma_forward<96>(args, ctx);
  if (dim <= 128) return run_mma_forward<128>(args, ctx);
  run_mma_forward<256>(args, ctx);
}
void run_backward(const AttentionBackward& args, const Context& ctx) {
  const std::int64_t dim = args.q.dim(2);
  if (dim <= 64) return run_mma_backward<64>(args, ctx);
  if (dim <= 96) return run_mma_backward<96>(args, ctx);
  if (dim <= 128) return run_mma_backward<128>(args, ctx);
  run_mma_backward<256>(args, ctx);
}

const bool added[] = {
    attention_kernel.add(Backend::cuda, {"own_mma", run_forward, supports_forward, 10}),
    attention_backward_kernel.add(Backend::cuda, {"own_mma", run_backward, supports_backward, 10}),
};

}  // namespace
}  // namespace ring::cuda
