#include "kernels/linear_attention/gated_norm.h"

#include <cmath>

#include "kernels/cpu/rows.h"
#include "kernels/cpu/vec.h"

namespace ring::cpu {
namespace {

constexpr std::int64_t kForwardCost = 10, kBackwardCost = 20;  // per element, in operations of 0.2 ns (kPartWork)

// Returns a view [N,H,D] of z [N,H D].
template <class Args>
Rows gate_rows(const char* op, const Args& a, const Tensor& z) {
  RING_CHECK(a.x.defined() && a.x.shape().size() == 3 && a.x.is_contiguous(), op, ": x is ", describe(a.x),
             ", expected contiguous [N,H,D]");
  check_shape(op, "z", z, {a.x.dim(0), a.x.dim(1) * a.x.dim(2)});
  check_numel(op, "w", a.w, a.x.dim(2));
  return rows_of(op, "z", z.split_dim(1, a.x.dim(2)));
}

float rstd_of(const float* x, std::int64_t width, float eps) {
  return 1.0f / std::sqrt(dot(x, x, width) / static_cast<float>(width) + eps);
}

void run_gated_norm(const GatedNorm& args, const ExecContext& ctx) {
  const Rows z = gate_rows("gated_norm", args, args.z);
  check_numel("gated_norm", "y", args.y, args.x.numel());
  const std::int64_t width = args.x.dim(2);
  const float *x = args.x.data<float>(), *w = args.w.data<float>(), eps = args.eps;
  float* y = args.y.data<float>();
  ctx.stream.pool().parallel_for(z.count, row_grain(kForwardCost * width), [=](auto begin, auto end, int) {
    for (std::int64_t n = begin; n < end; ++n) {
      const float *in = x + n * width, *gate = z[n], r = rstd_of(in, width, eps);
      float* out = y + n * width;
#pragma GCC ivdep
      for (std::int64_t c = 0; c < width; ++c) out[c] = in[c] * r * w[c] * gate[c] * sigmoid_fast(gate[c]);
    }
  });
}

// With g = dy silu(z) w: dx = rstd g - x rstd^3 mean(g x), dz = dy x rstd w silu'(z), dw = sum of dy silu(z) x rstd.
void run_gated_norm_backward(const GatedNormBackward& args, const ExecContext& ctx) {
  constexpr const char* op = "gated_norm_backward";
  const Rows z = gate_rows(op, args, args.z), dz = args.dz.defined() ? gate_rows(op, args, args.dz) : Rows{};
  check_numel(op, "dy", args.dy, args.x.numel());
  const std::int64_t width = args.x.dim(2), grain = row_grain(kBackwardCost * width);
  const float *x = args.x.data<float>(), *w = args.w.data<float>(), *dy = args.dy.data<float>();
  float* dx = args.dx.defined() ? args.dx.data<float>() : nullptr;
  const Partials sums(ctx, part_count(ctx.stream.pool(), z.count, grain), width);
  const auto store = [](float& to, float beta, float value) { to = beta == 0 ? value : beta * to + value; };
  ctx.stream.pool().parallel_for(z.count, grain, [&](std::int64_t begin, std::int64_t end, int thread) {
    float* dw = sums[thread];
    for (std::int64_t n = begin; n < end; ++n) {
      const float *in = x + n * width, *gate = z[n], *g = dy + n * width, r = rstd_of(in, width, args.eps);
      float along = 0;  // sum of g x over a row
      for (std::int64_t c = 0; c < width; ++c) {
        const float s = sigmoid_fast(gate[c]), gated = g[c] * gate[c] * s, normed = in[c] * r;
        along += gated * w[c] * in[c];
        dw[c] += gated * normed;
        if (dz.data) store(dz[n][c], args.beta_z, g[c] * normed * w[c] * s * (1 + gate[c] * (1 - s)));
      }
      if (!dx) continue;
      const float factor = r * r * r * along / static_cast<float>(width);
      for (std::int64_t c = 0; c < width; ++c)
        store(dx[n * width + c], args.beta_x, g[c] * gate[c] * sigmoid_fast(gate[c]) * w[c] * r - in[c] * factor);
    }
  });
  if (args.dw.defined()) sums.add_to(args.dw.data<float>(), args.beta_w, 0, width);
}

const bool added_gated_norm[] = {gated_norm_kernel.add(Backend::cpu, {"rows", run_gated_norm}),
                                 gated_norm_backward_kernel.add(Backend::cpu, {"rows", run_gated_norm_backward})};

}  // namespace
}  // namespace ring::cpu
