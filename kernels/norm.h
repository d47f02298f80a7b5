#pragma once
#include "kernels/kernel.h"

namespace ring {

// RMSNorm (Zhang and Sennrich 2019, eq. 4): y = x * rstd * (w + w_offset), rstd = 1 / sqrt(mean(x^2) + eps), over the
// last dim. For weights centred on 0 (Gemma), w_offset is 1, added in f32.
// x, y [N,C] or [N,H,C], rows may be strided, y may be x; w [C]; all of one type, f32 or bf16. rstd [rows] f32 is an
// output that the backward needs. Arithmetic and statistics are f32.
struct RmsNorm {
  Tensor x, w, y, rstd;
  float eps = 1e-5f, w_offset = 0;
};
inline Cost cost(const RmsNorm& a) { return cost_of(a.x, {a.x, a.w, a.y}); }
inline constinit Kernel<RmsNorm> rms_norm_kernel{"rms_norm"};

// dx = beta_x * dx + gradient, dw = beta_w * dw + gradient. Leave dx or dw undefined if it is not wanted. If beta_x is
// 0, dx may be dy or x. dw is f32 or bf16, independent of x; it is summed over rows in f32, in a fixed order. max [1]
// f32 is raised to the largest magnitude of dx, ignoring NaN; it may be undefined, and requires dx.
struct RmsNormBackward {
  Tensor x, w, rstd, dy;
  Tensor dx, dw;
  float beta_x = 0, beta_w = 0;
  Tensor max = {};
  float w_offset = 0;
};
inline Cost cost(const RmsNormBackward& a) {
  return cost_of(a.x, {a.x, a.w, a.dy, a.dx, a.beta_x != 0 ? a.dx : Tensor{}, a.dw});
}
inline constinit Kernel<RmsNormBackward> rms_norm_backward_kernel{"rms_norm_backward"};

// LayerNorm (Ba et al. 2016): y = (x - mean) * rstd * w + b, over the last dim. b may be undefined. mean, rstd [rows]
// f32 are outputs that the backward needs.
struct LayerNorm {
  Tensor x, w, b, y, mean, rstd;
  float eps = 1e-5f;
};
inline Cost cost(const LayerNorm& a) { return cost_of(a.x, {a.x, a.w, a.y}); }
inline constinit Kernel<LayerNorm> layer_norm_kernel{"layer_norm"};

struct LayerNormBackward {
  Tensor x, w, mean, rstd, dy;
  Tensor dx, dw, db;  // may be undefined if not wanted
  float beta_x = 0, beta_w = 0, beta_b = 0;
};
inline Cost cost(const LayerNormBackward& a) {
  return cost_of(a.x, {a.x, a.w, a.dy, a.dx, a.beta_x != 0 ? a.dx : Tensor{}, a.dw});
}
inline constinit Kernel<LayerNormBackward> layer_norm_backward_kernel{"layer_norm_backward"};

}  // namespace ring
