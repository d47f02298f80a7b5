#pragma once
// Ops that write their result in FP8, as a linear layer reads it, instead of f32 or bf16. The result is rounded to the
// operands' type before it is quantized, as if the op and quantize_fp8 were two kernels. `out`, `transposed` and `max`
// are as in QuantizeFp8 for an input (RMSNorm, SwiGLU) or a gradient. If tensorwise, GPUs find the maximum first.

#include "kernels/fp8.h"

namespace ring {

// RMSNorm's forward (kernels/norm.h): x [N,C] with unit last stride, w [C], of one type. Overwrites rstd [N] f32.
struct RmsNormFp8 {
  Tensor x, w, rstd;
  Fp8Matrix out, transposed;
  Fp8Max max = {};
  float eps = 1e-5f;
};
// SwiGLU's forward (kernels/activation.h): out is [N,F]. The input is gate_up [N,2F] with unit last stride, or
// `fp8_gate_up`, the same matrix in blocks of rows. With fp8_gate_up, F must be a multiple of 128, so that no block has
// columns of both gate and up; the op reads the elements rounded to `dtype`, as dequantize_fp8 writes them.
struct SwiGluFp8 {
  Tensor gate_up;
  Fp8Matrix out, transposed;
  Fp8Max max = {};
  Fp8Matrix fp8_gate_up = {};
  DType dtype = DType::f32;  // the operands' type with fp8_gate_up: f32 or bf16
};
// SwiGLU's backward: writes the gradient of gate_up [N,2F] to out. dy [N,F] has unit last stride. As in the forward,
// `fp8_gate_up` may be given instead of gate_up; its values are then rounded to the type of dy.
struct SwiGluBackwardFp8 {
  Tensor gate_up, dy;
  Fp8Matrix out, transposed;
  Fp8Max max = {};
  Fp8Matrix fp8_gate_up = {};
};
// Applies RoPE (kernels/rope.h) to the first `heads` heads, of D columns each, in every row of x [N,C]; the others stay
// unrotated; out is [N,C]. x has unit last stride; positions [N] i32, inv_freq [D/2] f32. With `inverse`, out is the
// gradient of a qkv matrix. May overwrite x, unless the call only finds the maximum.
struct RopeFp8 {
  Tensor x, positions, inv_freq;
  std::int64_t heads = 0;
  bool inverse = false;
  Fp8Matrix out, transposed;
  Fp8Max max = {};
};

void check(const RmsNormFp8&);
void check(const SwiGluFp8&);
void check(const SwiGluBackwardFp8&);
void check(const RopeFp8&);
Cost cost(const RmsNormFp8&);
Cost cost(const SwiGluFp8&);
Cost cost(const SwiGluBackwardFp8&);
Cost cost(const RopeFp8&);
std::size_t scratch_bytes(const SwiGluFp8&, const ExecContext&);
std::size_t scratch_bytes(const SwiGluBackwardFp8&, const ExecContext&);
std::size_t scratch_bytes(const RopeFp8&, const ExecContext&);
inline constinit Kernel<RmsNormFp8> rms_norm_fp8_kernel{"rms_norm_fp8"};
inline constinit Kernel<SwiGluFp8> swiglu_fp8_kernel{"swiglu_fp8"};
inline constinit Kernel<SwiGluBackwardFp8> swiglu_backward_fp8_kernel{"swiglu_backward_fp8"};
inline constinit Kernel<RopeFp8> rope_fp8_kernel{"rope_fp8"};

// Run the op as two kernels: first the op itself, then quantize_fp8. This is the reference and, on GPUs, the last
// resort. They allocate the op's result; RoPE instead writes its result to x.
void run_separately(const RmsNormFp8&, const ExecContext&);
void run_separately(const SwiGluFp8&, const ExecContext&);
void run_separately(const SwiGluBackwardFp8&, const ExecContext&);
void run_separately(const RopeFp8&, const ExecContext&);

}  // namespace ring
