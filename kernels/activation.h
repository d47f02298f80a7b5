#pragma once
#include "kernels/kernel.h"

namespace ring {

enum class Activation : std::uint8_t {
  gelu,       // x Phi(x), erf form (Hendrycks and Gimpel 2016)
  gelu_tanh,  // tanh approximation of gelu, as in GPT-2
  relu2,      // max(x, 0)^2 (So et al. 2021, Primer)
  soft_cap,   // cap * tanh(x / cap), as in Gemma 2
};

// y = f(x), both contiguous and of the same shape. In this header all tensors of an op have one type, f32 or bf16;
// arithmetic is f32.
struct Activate {
  Tensor x, y;
  Activation kind = Activation::gelu;
  float cap = 1;  // used only by soft_cap
};
inline Cost cost(const Activate& a) { return cost_of(a.x, {a.x, a.y}); }
inline constinit Kernel<Activate> activate_kernel{"activate"};

// dx = dy * f'(x); dx may be dy.
struct ActivateBackward {
  Tensor x, dy, dx;
  Activation kind = Activation::gelu;
  float cap = 1;
};
inline Cost cost(const ActivateBackward& a) { return cost_of(a.x, {a.x, a.dy, a.dx}); }
inline constinit Kernel<ActivateBackward> activate_backward_kernel{"activate_backward"};

enum class Gate : std::uint8_t { silu, gelu_tanh };

// SwiGLU or, with gelu_tanh, GEGLU (Shazeer 2020): y [N,F] = f(gate) * up, where gate_up [N,2F] holds gate in columns
// [0,F) and up in [F,2F). Rows may be strided. y may share the memory of gate.
struct SwiGlu {
  Tensor gate_up, y;
  Gate gate = Gate::silu;
};
inline Cost cost(const SwiGlu& a) { return cost_of(a.gate_up, {a.gate_up, a.y}); }
inline constinit Kernel<SwiGlu> swiglu_kernel{"swiglu"};

// Backward of SwiGlu: overwrites dgate_up, which may be gate_up.
struct SwiGluBackward {
  Tensor gate_up, dy, dgate_up;
  Gate gate = Gate::silu;
};
inline Cost cost(const SwiGluBackward& a) { return cost_of(a.gate_up, {a.gate_up, a.dy, a.dgate_up}); }
inline constinit Kernel<SwiGluBackward> swiglu_backward_kernel{"swiglu_backward"};

// y = x * sigmoid(gate). All tensors are contiguous and of one shape. y may be x or gate.
struct SigmoidGate {
  Tensor x, gate, y;
};
inline Cost cost(const SigmoidGate& a) { return cost_of(a.x, {a.x, a.gate, a.y}); }
inline constinit Kernel<SigmoidGate> sigmoid_gate_kernel{"sigmoid_gate"};

// Gradient of the gate: dgate = dy * x * sigmoid'(gate), which may overwrite any input. The gradient of x is
// SigmoidGate itself, applied to dy.
struct SigmoidGateBackward {
  Tensor x, gate, dy, dgate;
};
inline Cost cost(const SigmoidGateBackward& a) { return cost_of(a.x, {a.x, a.gate, a.dy, a.dgate}); }
inline constinit Kernel<SigmoidGateBackward> sigmoid_gate_backward_kernel{"sigmoid_gate_backward"};

}  // namespace ring
