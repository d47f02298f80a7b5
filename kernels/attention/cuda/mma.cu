// Registers the tensor-core (mma.sync) kernels as candidates for bf16 tensors whose rows are aligned 16-byte chunks.

#include "kernels/attention/cuda/mma_block.cuh"
#include "kernels/cuda/device/vec.cuh"

namespace ring::cuda {
namespace {

// Returns true if the tensor is bf16 (f32 if or_f32 is set) and its rows consist of aligned 16-byte chunks.
bool fits(const Tensor& t, bool or_f32 = false) {
  if (!t.defined() || t.shape().size() != 3 || t.stride(2) != 1 || !is_aligned(t.raw())) return false;
  if (t.dtype() != DType::bf16 && !(or_f32 && t.dtype() == DType::f32)) return false;
  const std::int64_t piece = 16 / static_cast<std::int64_t>(size_of(t.dtype()));
  return t.stride(0) % piece == 0 && t.stride(1) % piece == 0;
}
bool fits_result(const Tensor& t, const Tensor& carry) {
  return fits(t, true) && (!carry.defined() || fits(carry, true));
}

// Returns true if head dim and scale fit. A negative scale would turn the row max into a min.
template <class Args>
bool fits_numbers(const Args& a) {
  return a.q.dim(2) % 8 == 0 && a.q.dim(2) <= 256 && a.scale > 0 && a.soft_cap == 0;
}

bool supports_forward(const Attention& a, const ExecContext&) {
  return fits(a.q) && fits(a.k) && fits(a.v) && fits_result(a.out, a.carry) && fits_numbers(a);
}
bool supports_backward(const AttentionBackward& a, const ExecContext&) {
  for (const Tensor* t : {&a.q, &a.k, &a.v, &a.out, &a.dout})
    if (!fits(*t)) return false;
  return fits_result(a.dq, a.carry_dq) && fits_result(a.dk, a.carry_dk) && fits_result(a.dv, a.carry_dv) &&
         fits_numbers(a);
}

template <bool kDrops>
auto forward_of(std::int64_t dim) {
  if (dim <= 64) return run_mma_forward<64, kDrops>;
  return dim <= 128 ? run_mma_forward<128, kDrops> : run_mma_forward<256, kDrops>;
}
template <bool kDrops>
auto backward_of(std::int64_t dim) {
  if (dim <= 64) return run_mma_backward<64, kDrops>;
  return dim <= 128 ? run_mma_backward<128, kDrops> : run_mma_backward<256, kDrops>;
}

void run_forward(const Attention& args, const ExecContext& ctx) {
  check(args);
  fill_outside(args, ctx);
  const Tensor keys = dropout_keys(args.dropout, args.lse, ctx);
  const auto run = keys.defined() ? forward_of<true>(args.q.dim(2)) : forward_of<false>(args.q.dim(2));
  forward_passes(
      args, ctx, [&](const Tensor& lse) { fill_no_keys(lse, ctx); },
      [&](const Attention& one, const BranchPass& pass) { run(one, pass, keys, ctx); });
}
void run_backward(const AttentionBackward& args, const ExecContext& ctx) {
  check(args);
  fill_outside(args, ctx);
  const RowStatistics statistics = row_statistics(args, ctx);
  const bool drops = statistics.keys.defined();
  const auto run = drops ? backward_of<true>(args.q.dim(2)) : backward_of<false>(args.q.dim(2));
  backward_passes(args, ctx, [&](const AttentionBackward& one, const BranchPass& pass, Gradient which) {
    run(one, pass, which, statistics, ctx);
  });
}

const bool added_mma[] = {
    attention_kernel.add(Backend::cuda, {"own_mma", run_forward, supports_forward, 10}),
    attention_backward_kernel.add(Backend::cuda, {"own_mma", run_backward, supports_backward, 10}),
};

}  // namespace
}  // namespace ring::cuda
