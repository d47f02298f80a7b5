#pragma once
#include "kernels/kernel.h"

namespace ring {

// RMSNorm (Zhang and Sennrich 2019, eq. 4): y = x * rstd * w, rstd = 1 / sqrt(mean(x^2) + eps), over the last dim.
// x, y [N,C], rows may be strided; w [C]; rstd [N] f32 is kept for the backward. Statistics in f32.
struct RmsNorm {
  Tensor x, w, y, rstd;
  float eps = 1e-5f;
};
inline constinit Kernel<RmsNorm> rms_norm_kernel{"rms_norm"};

// dx = beta_x * dx + gradient, dw = beta_w * dw + gradient.
struct RmsNormBackward {
  Tensor x, w, rstd, dy;
  Tensor dx, dw;
  float beta_x = 0, beta_w = 0;
};
inline constinit Kernel<RmsNormBackward> rms_norm_backward_kernel{"rms_norm_backward"};

// LayerNorm (Ba et al. 2016): y = (x - mean) * rstd * w + b, over the last dim; b undefined: none. mean, rstd [N] f32.
struct LayerNorm {
  Tensor x, w, b, y, mean, rstd;
  float eps = 1e-5f;
};
inline constinit Kernel<LayerNorm> layer_norm_kernel{"layer_norm"};

struct LayerNormBackward {
  Tensor x, w, mean, rstd, dy;
  Tensor dx, dw, db;  // db undefined: no bias
  float beta_x = 0, beta_w = 0, beta_b = 0;
};
inline constinit Kernel<LayerNormBackward> layer_norm_backward_kernel{"layer_norm_backward"};

}  // namespace ring
