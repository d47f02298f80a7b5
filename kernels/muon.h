#pragma once
// Kernels of Muon (Jordan 2024, kellerjordan.github.io/posts/muon) except its GEMMs; optim/muon.h uses them.

#include <vector>

#include "core/philox.h"
#include "core/step_state.h"
#include "kernels/kernel.h"

namespace ring {

// One of several matrices of the same size that are updated in one call. All tensors are contiguous, f32 or bf16; each
// field has the same type in all matrices. On CPUs all are f32 and `weights` must be undefined. The momentum may be u8.
struct MuonMatrix {
  Tensor values, gradient, momentum;
  Tensor weights;                  // bf16, receives a copy of the new values; may be undefined
  std::int64_t first_element = 0;  // index of element 0 among all parameters, for random bits; a multiple of 8
  Tensor momentum_scales;          // if the momentum is u8: the scales of its e4m3 codes, as for AdamW's m
};

// g = gradient * state.clip; m = beta m + g; update = nesterov ? g + beta m : m. Does nothing if state.accepted is 0.
// update [B, ...] holds one update per matrix, f32 on CPUs and bf16 on GPUs. A bf16 or u8 m is rounded stochastically,
// like AdamW's moments (kernels/optimizer.h).
struct MuonMomentum {
  std::vector<MuonMatrix> matrices;
  Tensor update, state;
  float beta = 0.95f;
  bool nesterov = true;
  RandomSite site{};  // site.step is ignored: state.step replaces it
};
Cost cost(const MuonMomentum&);
inline constinit Kernel<MuonMomentum> muon_momentum_kernel{"muon_momentum"};

// x[b] /= |x[b]| + eps, with the Frobenius norm. x [B, ...] contiguous, f32 on CPUs and bf16 on GPUs. Accumulates in
// f64, in a fixed order per thread count.
struct UnitNorm {
  Tensor x;
  float eps = 1e-7f;
};
inline Cost cost(const UnitNorm& a) { return cost_of(a.x, {a.x, a.x, a.x}); }
inline constinit Kernel<UnitNorm> unit_norm_kernel{"unit_norm"};

// values = (1 - lr decay) values - lr scale update, lr = state.lr * lr_scale, decay = weight_decay * state.decay_scale.
// Does nothing if state.accepted is 0. bf16 values are rounded stochastically.
struct MuonApply {
  std::vector<MuonMatrix> matrices;
  Tensor update, state;  // update: one per matrix, as in MuonMomentum
  float scale = 1, weight_decay = 0, lr_scale = 1;
  RandomSite site{};
};
Cost cost(const MuonApply&);
inline constinit Kernel<MuonApply> muon_apply_kernel{"muon_apply"};

// Returns the number of elements of each matrix. Throws Error, naming `op`, if matrices differ in size or
// if `update` has the wrong size.
std::int64_t check(const char* op, const std::vector<MuonMatrix>&, const Tensor& update);

}  // namespace ring
