#pragma once
// What Muon (Jordan 2024, kellerjordan.github.io/posts/muon) does beside products of matrices: optim/muon.h.

#include <vector>

#include "core/philox.h"
#include "core/step_state.h"
#include "kernels/kernel.h"

namespace ring {

// One of several matrices of one size that are updated together; contiguous, each tensor f32 or bf16 and of one type in
// all of them. On CPUs all are f32, and there are no weights.
struct MuonMatrix {
  Tensor values, gradient, momentum;
  Tensor weights;                  // bf16: gets a copy of the new values; undefined: there is none
  std::int64_t first_element = 0;  // number of element 0 among all parameters, a multiple of 8: for random bits
};

// g = gradient * state.clip; m = beta m + g; update = nesterov ? g + beta m : m. Does nothing where state.accepted is
// 0. update [B, ...]: one after the other, f32 on CPUs and bf16 on GPUs. m in bf16 is rounded stochastically, as
// moments of AdamW are (kernels/optimizer.h).
struct MuonMomentum {
  std::vector<MuonMatrix> matrices;
  Tensor update, state;
  float beta = 0.95f;
  bool nesterov = true;
  RandomSite site{};  // site.step is not used
};
Cost cost(const MuonMomentum&);
inline constinit Kernel<MuonMomentum> muon_momentum_kernel{"muon_momentum"};

// x[b] /= |x[b]| + eps, Frobenius norms. x [B, ...] contiguous, f32 on CPUs and bf16 on GPUs. Sums are f64, in a fixed
// order per thread count.
struct UnitNorm {
  Tensor x;
  float eps = 1e-7f;
};
inline Cost cost(const UnitNorm& a) { return cost_of(a.x, {a.x, a.x, a.x}); }
inline constinit Kernel<UnitNorm> unit_norm_kernel{"unit_norm"};

// values = (1 - lr decay) values - lr scale update, lr = state.lr * lr_scale, decay = weight_decay * state.decay_scale.
// Does nothing where state.accepted is 0. What is written in bf16 to values is rounded stochastically.
struct MuonApply {
  std::vector<MuonMatrix> matrices;
  Tensor update, state;  // update: as MuonMomentum writes it
  float scale = 1, weight_decay = 0, lr_scale = 1;
  RandomSite site{};
};
Cost cost(const MuonApply&);
inline constinit Kernel<MuonApply> muon_apply_kernel{"muon_apply"};

// Elements of each matrix. Error: sizes that differ, or an update of another size.
std::int64_t check(const char* op, const std::vector<MuonMatrix>&, const Tensor& update);

}  // namespace ring
