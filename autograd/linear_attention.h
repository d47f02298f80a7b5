#pragma once
// Differentiable ops of linear attention. Each document starts from its own state: packed documents do not affect each
// other. N = tokens on this device. If sequences are sharded among ranks or computed in chunks (Sequences::shards), the
// chain of RunLayout::cp passes states from part to part; CarriedState is then not supported.

#include "autograd/ops.h"

namespace ring {

// The state of an op before and after each document of a call: tensors [documents, ...] f32.
struct CarriedState {
  Var initial{};         // undefined: documents start from 0
  Var* final = nullptr;  // receives the differentiable state after each document; null if it is not wanted
  Tensor memory{};       // memory for the final state, which may be that of `initial`; undefined allocates it
};

// Causal convolution over the last K inputs of each channel, then SiLU (kernels/linear_attention/short_conv.h):
// x [N,C], w [C K] -> [N,C]. State: the last K-1 inputs, [documents,K-1,C]. layer: for an exchange that stores
// something for each layer.
Var short_conv(Run&, const Var& x, const Var& w, const Sequences&, const CarriedState& = {}, std::int64_t layer = 0);

// Computes the gates of the gated delta rule from ab [N,2H] and log_decay, dt_bias [H]
// (kernels/linear_attention/gated_delta.h) -> [N,2H] f32. Columns [0,H) hold g <= 0, the logarithm of the decay;
// columns [H,2H) hold beta in [0, max_beta], the rate at which stored values are corrected.
Var delta_gates(Run&, const Var& ab, const Var& log_decay, const Var& dt_bias, float max_beta);

// The gated delta rule (kernels/linear_attention/gated_delta.h). qkv [N, 2 key_heads key_width + value_heads
// value_width] holds q | k | v in columns; q and k are divided by their norms. gates [N, 2 value_heads] f32 ->
// [N,value_heads,value_width]. State: [documents,value_heads,key_width,value_width].
struct GatedDeltaRule {
  std::int64_t key_heads = 1, value_heads = 1, key_width = 8, value_width = 8;
  float scale = 1;
  std::int64_t layer = 0;  // for an exchange that stores something for each layer
};
Var gated_delta(Run&, const Var& qkv, const Var& gates, const Sequences&, const GatedDeltaRule&,
                const CarriedState& = {});

// RMSNorm of x [N,H,D] over the last dim with weight w [D], times silu(z), z [N,H D] -> [N,H D].
Var gated_norm(Run&, const Var& x, const Var& z, const Var& w, float eps);

}  // namespace ring
