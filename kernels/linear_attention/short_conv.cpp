#include "kernels/linear_attention/short_conv.h"

namespace ring {

std::int64_t conv_rows_per_part(std::int64_t rows, std::int64_t items) {
  constexpr std::int64_t min_parts = 1024, threads = 256;
  std::int64_t each = 16;
  while (each < 256 && rows * ((items + threads - 1) / threads) / (2 * each) >= min_parts) each *= 2;
  return each;
}

// CPUs store transposed weights. In the backward, they also store the transposed weight gradient, the gradients of the
// inputs of SiLU, and weight gradients for each thread. GPUs store weight gradients for each part of the rows.
std::size_t scratch_bytes(const ShortConv& a, const ExecContext& ctx) {
  return ctx.stream.device().backend == Backend::cpu ? static_cast<std::size_t>(a.w.numel()) * sizeof(float) : 0;
}
std::size_t scratch_bytes(const ShortConvBackward& a, const ExecContext& ctx) {
  if (ctx.stream.device().backend != Backend::cpu) {
    const std::int64_t each = conv_rows_per_part(a.x.dim(0), a.x.dim(1) / 4);
    const std::int64_t parts = 2 * (a.x.dim(0) / each + std::ssize(a.documents) + 1);
    return static_cast<std::size_t>(parts * a.w.numel()) * sizeof(float);
  }
  return static_cast<std::size_t>(a.x.numel() + (2 + ctx.stream.impl().threads()) * a.w.numel()) * sizeof(float);
}

}  // namespace ring
