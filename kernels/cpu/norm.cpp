#include "kernels/norm.h"

#include <cmath>

#include "kernels/cpu/rows.h"
#include "kernels/cpu/vec.h"

namespace ring::cpu {
namespace {

constexpr std::int64_t kForwardWork = 4, kBackwardWork = 8;  // cost of an element in simple ones, 0.2 ns (kPartWork)

void run_rms_norm(const RmsNorm& args, const ExecContext& ctx) {
  const Rows x = rows_of("rms_norm", "x", args.x), y = rows_of("rms_norm", "y", args.y);
  check_shape("rms_norm", "y", args.y, args.x.shape());
  check_numel("rms_norm", "w", args.w, x.width);
  check_numel("rms_norm", "rstd", args.rstd, x.count);
  const float *w = args.w.data<float>(), eps = args.eps, offset = args.w_offset;
  float* rstd = args.rstd.data<float>();
  ctx.stream.pool().parallel_for(x.count, row_grain(kForwardWork * x.width), [=](auto begin, auto end, int) {
    for (std::int64_t n = begin; n < end; ++n) {
      const float* in = x[n];
      float* out = y[n];
      const float r = 1.0f / std::sqrt(dot(in, in, x.width) / static_cast<float>(x.width) + eps);
      rstd[n] = r;
#pragma GCC ivdep
      for (std::int64_t c = 0; c < x.width; ++c) out[c] = in[c] * r * (w[c] + offset);
    }
  });
}

// Computes dst[c] = beta * dst[c] + value(c) for c < n. Does not read dst if beta = 0.
template <class F>
void store(float* dst, float beta, std::int64_t n, const F& value) {
  if (beta == 0) {
#pragma GCC ivdep
    for (std::int64_t c = 0; c < n; ++c) dst[c] = value(c);
  } else {
#pragma GCC ivdep
    for (std::int64_t c = 0; c < n; ++c) dst[c] = beta * dst[c] + value(c);
  }
}

// With g = dy * (w + w_offset): dx = rstd * g - x * rstd^3 * mean(g * x), dw = sum over rows of dy * x * rstd.
void run_rms_norm_backward(const RmsNormBackward& args, const ExecContext& ctx) {
  const Rows x = rows_of("rms_norm_backward", "x", args.x), dy = rows_of("rms_norm_backward", "dy", args.dy);
  const bool want_dx = args.dx.defined(), want_dw = args.dw.defined();
  const Rows dx = want_dx ? rows_of("rms_norm_backward", "dx", args.dx) : Rows{};
  check_shape("rms_norm_backward", "dy", args.dy, args.x.shape());
  if (want_dx) check_shape("rms_norm_backward", "dx", args.dx, args.x.shape());
  if (want_dw) check_numel("rms_norm_backward", "dw", args.dw, x.width);
  check_numel("rms_norm_backward", "w", args.w, x.width);
  check_numel("rms_norm_backward", "rstd", args.rstd, x.count);
  const float *w = args.w.data<float>(), *rstd = args.rstd.data<float>(), offset = args.w_offset;
  const std::int64_t width = x.width, grain = row_grain(kBackwardWork * width);
  const Partials partials(ctx, part_count(ctx.stream.pool(), x.count, grain), want_dw ? width : 0);
  ctx.stream.pool().parallel_for(x.count, grain, [&](std::int64_t begin, std::int64_t end, int thread) {
    float* dw = partials[thread];
    for (std::int64_t n = begin; n < end; ++n) {
      const float *in = x[n], *g = dy[n], r = rstd[n];
      const float sum = sum_of(width, [=](std::int64_t c) { return g[c] * (w[c] + offset) * in[c]; });
      const float k = sum * r * r * r / static_cast<float>(width);
      if (want_dw)
#pragma GCC ivdep
        for (std::int64_t c = 0; c < width; ++c) dw[c] += g[c] * in[c] * r;
      if (want_dx)
        store(dx[n], args.beta_x, width, [=](std::int64_t c) { return g[c] * (w[c] + offset) * r - k * in[c]; });
    }
  });
  if (want_dw) partials.add_to(args.dw.data<float>(), args.beta_w, 0, width);
  if (!args.max.defined()) return;
  float& max = *args.max.data<float>();
  for (std::int64_t n = 0; n < x.count; ++n)
    for (std::int64_t c = 0; c < width; ++c)
      if (const float magnitude = std::abs(dx[n][c]); magnitude > max) max = magnitude;  // false for NaN
}

void run_layer_norm(const LayerNorm& args, const ExecContext& ctx) {
  const Rows x = rows_of("layer_norm", "x", args.x), y = rows_of("layer_norm", "y", args.y);
  check_shape("layer_norm", "y", args.y, args.x.shape());
  check_numel("layer_norm", "w", args.w, x.width);
  if (args.b.defined()) check_numel("layer_norm", "b", args.b, x.width);
  check_numel("layer_norm", "mean", args.mean, x.count);
  check_numel("layer_norm", "rstd", args.rstd, x.count);
  const float *w = args.w.data<float>(), *b = args.b.defined() ? args.b.data<float>() : nullptr, eps = args.eps;
  float *mean = args.mean.data<float>(), *rstd = args.rstd.data<float>();
  const auto width = static_cast<float>(x.width);
  ctx.stream.pool().parallel_for(x.count, row_grain(kForwardWork * x.width), [=](auto begin, auto end, int) {
    for (std::int64_t n = begin; n < end; ++n) {
      const float* in = x[n];
      const float m = sum_of(x.width, [=](std::int64_t c) { return in[c]; }) / width;
      const float variance = sum_of(x.width, [=](std::int64_t c) { return (in[c] - m) * (in[c] - m); }) / width;
      const float r = 1.0f / std::sqrt(variance + eps);
      mean[n] = m;
      rstd[n] = r;
      if (b)
        store(y[n], 0.0f, x.width, [=](std::int64_t c) { return (in[c] - m) * r * w[c] + b[c]; });
      else
        store(y[n], 0.0f, x.width, [=](std::int64_t c) { return (in[c] - m) * r * w[c]; });
    }
  });
}

struct LayerNormRow {
  const float *x, *dy, *w;
  float mean, rstd;
  std::int64_t width;
  float hat(std::int64_t c) const { return (x[c] - mean) * rstd; }
};

// With g = dy * w, h = (x - mean) * rstd: dx = rstd * (g - mean(g) - h * mean(g * h)).
void layer_norm_dx(const LayerNormRow& r, float* dx, float beta) {
  const auto width = static_cast<float>(r.width);
  const float g1 = sum_of(r.width, [=](std::int64_t c) { return r.dy[c] * r.w[c]; }) / width;
  const float gh = sum_of(r.width, [=](std::int64_t c) { return r.dy[c] * r.w[c] * r.hat(c); }) / width;
  store(dx, beta, r.width, [=](std::int64_t c) { return r.rstd * (r.dy[c] * r.w[c] - g1 - r.hat(c) * gh); });
}

void check_layer_norm_backward(const LayerNormBackward& args, const Rows& x) {
  const char* op = "layer_norm_backward";
  check_shape(op, "dy", args.dy, args.x.shape());
  if (args.dx.defined()) check_shape(op, "dx", args.dx, args.x.shape());
  if (args.dw.defined()) check_numel(op, "dw", args.dw, x.width);
  if (args.db.defined()) check_numel(op, "db", args.db, x.width);
  check_numel(op, "w", args.w, x.width);
  check_numel(op, "mean", args.mean, x.count);
  check_numel(op, "rstd", args.rstd, x.count);
}

void run_layer_norm_backward(const LayerNormBackward& args, const ExecContext& ctx) {
  const Rows x = rows_of("layer_norm_backward", "x", args.x), dy = rows_of("layer_norm_backward", "dy", args.dy);
  check_layer_norm_backward(args, x);
  const bool want_dx = args.dx.defined(), want_dw = args.dw.defined(), want_db = args.db.defined();
  const Rows dx = want_dx ? rows_of("layer_norm_backward", "dx", args.dx) : Rows{};
  const float *w = args.w.data<float>(), *mean = args.mean.data<float>(), *rstd = args.rstd.data<float>();
  const std::int64_t width = x.width, grain = row_grain(kBackwardWork * width);
  const Partials partials(ctx, part_count(ctx.stream.pool(), x.count, grain), want_dw || want_db ? 2 * width : 0);
  ctx.stream.pool().parallel_for(x.count, grain, [&](std::int64_t begin, std::int64_t end, int thread) {
    float *dw = partials[thread], *db = dw + width;
    for (std::int64_t n = begin; n < end; ++n) {
      const LayerNormRow r{x[n], dy[n], w, mean[n], rstd[n], width};
      if (want_dw || want_db)
#pragma GCC ivdep
        for (std::int64_t c = 0; c < width; ++c) {
          dw[c] += r.dy[c] * r.hat(c);
          db[c] += r.dy[c];
        }
      if (want_dx) layer_norm_dx(r, dx[n], args.beta_x);
    }
  });
  if (want_dw) partials.add_to(args.dw.data<float>(), args.beta_w, 0, width);
  if (want_db) partials.add_to(args.db.data<float>(), args.beta_b, width, width);
}

const bool added[] = {
    rms_norm_kernel.add(Backend::cpu, {"rows", run_rms_norm}),
    rms_norm_backward_kernel.add(Backend::cpu, {"rows", run_rms_norm_backward}),
    layer_norm_kernel.add(Backend::cpu, {"rows", run_layer_norm}),
    layer_norm_backward_kernel.add(Backend::cpu, {"rows", run_layer_norm_backward}),
};

}  // namespace
}  // namespace ring::cpu
