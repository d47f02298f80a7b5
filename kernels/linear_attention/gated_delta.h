#pragma once
// Gated delta rule (Yang, Kautz and Hatamizadeh 2024, "Gated Delta Networks"): linear attention with a state that
// decays by a gate, and in which each token corrects the value that is stored under its key.

#include <vector>

#include "kernels/attention/pattern.h"
#include "kernels/kernel.h"

namespace ring {

// For each document and value head h, in f32; q and k: of key head h * Hk / Hv (rounded down), divided by their norms:
//   S <- exp(g_t) S;   S <- S + beta_t k_t (v_t - S^T k_t)^T;   out_t = scale * S^T q_t,   S [Dk,Dv]
//   q, k        [N,Hk,Dk]; v, out [N,Hv,Dv]: any strides with unit last dim. A norm is sqrt(sum(x^2) + eps).
//   decay, beta [N,Hv] f32, any row stride: g_t <= 0, and beta_t, the rate at which stored values are corrected.
//   initial, final  [documents,Hv,Dk,Dv] f32: the state before and after each document. Without initial, documents
//               start from 0; without final, their last states are not stored. Both may be one tensor.
//   states      [state_slots(N),Hv,Dk,Dv] f32 for the backward, or undefined: the state every kStateTokens tokens of a
//               document. Slots that no document uses are not written.
// out is 0 in rows that belong to no document.
struct GatedDelta {
  Tensor q, k, v, decay, beta, out;
  Tensor initial, final, states;
  std::vector<Span> documents;
  float scale = 1, eps = 1e-6f;
};

// kDeltaChunk: tokens per chunk. Within a chunk, kernels use matrix products instead of the recurrence.
// kStateTokens: tokens between saved states. The backward recomputes the states of the chunks in between.
inline constexpr std::int64_t kDeltaChunk = 64, kStateTokens = 8 * kDeltaChunk;
// The state before row n is in slot n / kStateTokens. Rows with saved states are at least kStateTokens apart.
constexpr std::int64_t state_slots(std::int64_t rows) { return (rows + kStateTokens - 1) / kStateTokens; }

Cost cost(const GatedDelta&);
std::size_t scratch_bytes(const GatedDelta&, const ExecContext&);
inline constinit Kernel<GatedDelta> gated_delta_kernel{"gated_delta"};

// Gradients of GatedDelta: d = factor * d + gradient. The factor is beta_qkv for dq, dk and dv, beta_gates for ddecay
// and dbeta, beta_initial for dinitial. Each d may be undefined. The gradient is 0 in rows that belong to no document.
//   states, initial  as in the forward
//   dfinal           gradient of `final`, or undefined
struct GatedDeltaBackward {
  Tensor q, k, v, decay, beta, initial, states;
  Tensor dout, dfinal;
  Tensor dq, dk, dv, ddecay, dbeta, dinitial;
  float beta_qkv = 0, beta_gates = 0, beta_initial = 0;
  std::vector<Span> documents;
  float scale = 1, eps = 1e-6f;
};
Cost cost(const GatedDeltaBackward&);
std::size_t scratch_bytes(const GatedDeltaBackward&, const ExecContext&);
inline constinit Kernel<GatedDeltaBackward> gated_delta_backward_kernel{"gated_delta_backward"};

// Throws Error, naming the tensor, if shapes, types or documents do not fit. Each kernel calls it first.
void check(const GatedDelta&);
void check(const GatedDeltaBackward&);
// Returns the temporary memory, in floats, that a CPU thread or a GPU thread block needs for heads of these widths if
// it computes chunks one after another.
std::int64_t delta_floats(std::int64_t key_width, std::int64_t value_width, bool backward);
// Returns how many GPU thread blocks to launch for these documents and heads.
std::int64_t delta_blocks(const std::vector<Span>& documents, std::int64_t value_heads);
// Returns the bytes of temporary memory that the kernels that use tensor cores need for each chunk of a head.
std::int64_t delta_item_bytes(std::int64_t key_width, std::int64_t value_width, bool backward);

// Computes the gates of the gated delta rule: g = -exp(log_decay) softplus(a + dt_bias), beta = max_beta * sigmoid(b).
//   ab     [N,2Hv], rows may be strided: a in columns [0,Hv), b in [Hv,2Hv)
//   gates  [N,2Hv] f32: g in columns [0,Hv), beta in [Hv,2Hv)
//   log_decay, dt_bias [Hv], of the type of ab
struct DeltaGates {
  Tensor ab, log_decay, dt_bias, gates;
  float max_beta = 1;
};
inline Cost cost(const DeltaGates& a) { return cost_of(a.ab, {a.ab, a.gates}); }
inline constinit Kernel<DeltaGates> delta_gates_kernel{"delta_gates"};

// dab = factor_ab * dab + gradient; dlog_decay and ddt_bias likewise. Each may be undefined: it is then not computed.
// On GPUs, dlog_decay and ddt_bias are f32 or bf16, whatever the type of ab.
struct DeltaGatesBackward {
  Tensor ab, log_decay, dt_bias, dgates;
  Tensor dab, dlog_decay, ddt_bias;
  float factor_ab = 0, factor_log_decay = 0, factor_dt_bias = 0;
  float max_beta = 1;
};
inline Cost cost(const DeltaGatesBackward& a) { return cost_of(a.ab, {a.ab, a.dgates, a.dab}); }
inline constinit Kernel<DeltaGatesBackward> delta_gates_backward_kernel{"delta_gates_backward"};

}  // namespace ring
