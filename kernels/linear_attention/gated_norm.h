#pragma once
#include "kernels/kernel.h"

namespace ring {

// RMSNorm of each head, times a gate: y = x * rstd * w * silu(z), rstd = 1 / sqrt(mean(x^2) + eps), over the last dim.
// x [N,H,D]; y, z [N,H D]; w [D]; all of one type, f32 or bf16 (GPUs). Rows of z may be strided; x and y are
// contiguous. Arithmetic is f32.
struct GatedNorm {
  Tensor x, z, w, y;
  float eps = 1e-6f;
};
inline Cost cost(const GatedNorm& a) { return cost_of(a.x, {a.x, a.z, a.w, a.y}); }
inline constinit Kernel<GatedNorm> gated_norm_kernel{"gated_norm"};

// dx = beta_x * dx + gradient; dz and dw likewise. Each may be undefined: it is then not computed. dw is summed over
// rows in a fixed order; on GPUs it is f32 or bf16, whatever the type of x.
struct GatedNormBackward {
  Tensor x, z, w, dy;
  Tensor dx, dz, dw;
  float beta_x = 0, beta_z = 0, beta_w = 0;
  float eps = 1e-6f;
};
inline Cost cost(const GatedNormBackward& a) { return cost_of(a.x, {a.x, a.z, a.w, a.dy, a.dx, a.dz, a.dw}); }
inline constinit Kernel<GatedNormBackward> gated_norm_backward_kernel{"gated_norm_backward"};

}  // namespace ring
