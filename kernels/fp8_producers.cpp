#include "kernels/fp8_producers.h"

#include "kernels/activation.h"
#include "kernels/norm.h"
#include "kernels/rope.h"
#include "kernels/rows.h"

namespace ring {
namespace {

constexpr std::string_view kNorm = "rms_norm_fp8", kSwiGlu = "swiglu_fp8", kSwiGluBackward = "swiglu_backward_fp8",
                           kRope = "rope_fp8";

void check_input(std::string_view op, std::string_view name, const Tensor& t) {
  RING_CHECK(t.defined() && t.shape().size() == 2 && (t.dim(1) <= 1 || t.stride(1) == 1), op, ": ", name, " is ",
             describe(t), ", expected a matrix with unit last stride");
}

// Throws Error if the outputs of `a` do not fit a result with the shape and type of `result`. transposed: the blocks
// that the transposed output must have, unless it is tensorwise.
template <class Args>
void check_outputs(std::string_view op, const Args& a, const Tensor& result, Fp8Blocks transposed) {
  const auto is_one_of = [](const Fp8Matrix& m, Fp8Blocks blocks) {
    return !m.defined() || m.blocks == blocks || m.blocks == Fp8Blocks::tensor;
  };
  RING_CHECK(is_one_of(a.out, Fp8Blocks::rows), op, ": out has square blocks, expected blocks of rows or one scale");
  RING_CHECK(is_one_of(a.transposed, transposed), op, ": transposed has ",
             transposed == Fp8Blocks::rows ? "square blocks, expected blocks of rows"
                                           : "blocks of rows, expected square blocks",
             " or one scale");
  check(QuantizeFp8{result, a.out, a.transposed, a.max});
}

// Returns gate_up, or the values of fp8_gate_up if gate_up is undefined.
template <class Args>
const Tensor& gate_up_of(const Args& a) {
  return a.gate_up.defined() ? a.gate_up : a.fp8_gate_up.values;
}
template <class Args>
void check_gate_up(std::string_view op, const Args& a) {
  RING_CHECK(a.gate_up.defined() != a.fp8_gate_up.defined(), op, ": expected gate_up or fp8_gate_up, got ",
             a.gate_up.defined() ? "both" : "neither");
  const Tensor& t = gate_up_of(a);
  check_input(op, "gate_up", t);
  RING_CHECK(t.dim(1) % 2 == 0, op, ": gate_up ", describe(t), " has an odd number of columns");
  if (a.gate_up.defined()) return;
  check_fp8_matrix(op, "fp8_gate_up", a.fp8_gate_up, t.dim(0), t.dim(1));
  RING_CHECK(a.fp8_gate_up.blocks == Fp8Blocks::rows && t.dim(1) % (2 * kFp8Block) == 0, op, ": fp8_gate_up is ",
             describe(t), ", expected blocks of rows, and whole blocks of gate and up");
}

// Runs an op as part of another op. Does not notify the observer, which sees the other op.
template <class Args>
void run_part(const Kernel<Args>& slot, const Args& args, const ExecContext& ctx) {
  slot.choose(args, ctx).fn(args, ctx);
}

}  // namespace

void check(const RmsNormFp8& a) {
  check_input(kNorm, "x", a.x);
  RING_CHECK(a.w.defined() && a.w.dtype() == a.x.dtype(), kNorm, ": w is ", describe(a.w), ", expected ", a.x.dtype());
  check_numel(kNorm, "w", a.w, a.x.dim(1));
  check_numel(kNorm, "rstd", a.rstd, a.x.dim(0));
  check_outputs(kNorm, a, a.x, Fp8Blocks::squares);
}
void check(const SwiGluFp8& a) {
  check_gate_up(kSwiGlu, a);
  const Tensor& gate_up = gate_up_of(a);
  check_outputs(kSwiGlu, a, gate_up.narrow(1, 0, gate_up.dim(1) / 2), Fp8Blocks::squares);
}
void check(const SwiGluBackwardFp8& a) {
  check_gate_up(kSwiGluBackward, a);
  check_input(kSwiGluBackward, "dy", a.dy);
  const Tensor& gate_up = gate_up_of(a);
  RING_CHECK(gate_up.dim(1) == 2 * a.dy.dim(1) && gate_up.dim(0) == a.dy.dim(0) &&
                 (!a.gate_up.defined() || gate_up.dtype() == a.dy.dtype()),
             kSwiGluBackward, " of ", describe(gate_up), " with dy ", describe(a.dy));
  check_outputs(kSwiGluBackward, a, gate_up, Fp8Blocks::rows);
}

void check(const RopeFp8& a) {
  check_input(kRope, "x", a.x);
  RING_CHECK(a.positions.defined() && a.positions.dtype() == DType::i32 && a.inv_freq.defined() &&
                 a.inv_freq.dtype() == DType::f32,
             kRope, ": positions is ", describe(a.positions), ", inv_freq is ", describe(a.inv_freq),
             ", expected i32 and f32");
  check_numel(kRope, "positions", a.positions, a.x.dim(0));
  RING_CHECK(a.heads >= 0 && a.heads * 2 * a.inv_freq.numel() <= a.x.dim(1), kRope, ": ", a.heads, " heads of ",
             2 * a.inv_freq.numel(), " columns, expected at most the ", a.x.dim(1), " columns of x");
  check_outputs(kRope, a, a.x, Fp8Blocks::rows);
}

Cost cost(const RmsNormFp8& a) {
  return cost_of(a.x, {a.x, a.w, a.out.values, a.out.scales, a.transposed.values, a.transposed.scales});
}
Cost cost(const SwiGluFp8& a) {
  return cost_of(gate_up_of(a), {gate_up_of(a), a.fp8_gate_up.scales, a.out.values, a.out.scales, a.transposed.values,
                                 a.transposed.scales});
}
Cost cost(const SwiGluBackwardFp8& a) {
  return cost_of(gate_up_of(a), {gate_up_of(a), a.fp8_gate_up.scales, a.dy, a.out.values, a.out.scales,
                                 a.transposed.values, a.transposed.scales});
}
Cost cost(const RopeFp8& a) {
  return cost_of(a.x, {a.x, a.out.values, a.out.scales, a.transposed.values, a.transposed.scales});
}

// On CPUs each op runs as two kernels with a temporary result. On GPUs, RoPE allocates a table of cosines and sines.
std::size_t scratch_bytes(const SwiGluFp8& a, const ExecContext& ctx) {
  if (ctx.stream.device().backend != Backend::cpu) return 0;
  return a.gate_up.defined() ? a.gate_up.bytes() / 2
                             : static_cast<std::size_t>(a.fp8_gate_up.values.numel()) * size_of(a.dtype);
}
std::size_t scratch_bytes(const SwiGluBackwardFp8& a, const ExecContext& ctx) {
  return ctx.stream.device().backend == Backend::cpu ? 2 * a.dy.bytes() : 0;
}

std::size_t scratch_bytes(const RopeFp8& a, const ExecContext& ctx) {
  const bool table = ctx.stream.device().backend == Backend::cuda && !a.max.value.defined();
  return table ? 2 * sizeof(float) * static_cast<std::size_t>(a.x.dim(0) * a.inv_freq.numel()) : 0;
}

void run_separately(const RmsNormFp8& a, const ExecContext& ctx) {
  check(a);
  const Tensor y = ctx.empty(a.x.shape(), a.x.dtype());
  run_part(rms_norm_kernel, {a.x, a.w, y, a.rstd, a.eps}, ctx);
  run_part(quantize_fp8_kernel, {y, a.out, a.transposed, a.max}, ctx);
}
void run_separately(const SwiGluFp8& a, const ExecContext& ctx) {
  check(a);
  const Tensor& in = gate_up_of(a);
  const std::int64_t width = in.dim(1) / 2;
  Tensor gate_up = a.gate_up, y;
  if (gate_up.defined()) {
    y = ctx.empty({in.dim(0), width}, in.dtype());
  } else {
    gate_up = ctx.empty(in.shape(), a.dtype), y = gate_up.narrow(1, 0, width);
    run_part(dequantize_fp8_kernel, {a.fp8_gate_up, gate_up}, ctx);
  }
  run_part(swiglu_kernel, {gate_up, y}, ctx);
  run_part(quantize_fp8_kernel, {y, a.out, a.transposed, a.max}, ctx);
}
void run_separately(const SwiGluBackwardFp8& a, const ExecContext& ctx) {
  check(a);
  const Tensor dgate_up = ctx.empty(gate_up_of(a).shape(), a.dy.dtype());
  if (a.fp8_gate_up.defined()) run_part(dequantize_fp8_kernel, {a.fp8_gate_up, dgate_up}, ctx);
  run_part(swiglu_backward_kernel, {a.gate_up.defined() ? a.gate_up : dgate_up, a.dy, dgate_up}, ctx);
  run_part(quantize_fp8_kernel, {dgate_up, a.out, a.transposed, a.max}, ctx);
}

void run_separately(const RopeFp8& a, const ExecContext& ctx) {
  check(a);
  const bool only_max = !a.out.defined() && !a.transposed.defined();
  const std::int64_t width = 2 * a.inv_freq.numel(), rotated = a.heads * width;
  const Tensor heads = a.x.narrow(1, 0, rotated);
  const Tensor y = only_max ? ctx.empty(heads.shape(), heads.dtype()) : heads;
  if (rotated > 0)
    run_part(rope_kernel, {heads.split_dim(1, width), y.split_dim(1, width), a.positions, a.inv_freq, a.inverse}, ctx);
  if (!only_max) return run_part(quantize_fp8_kernel, {a.x, a.out, a.transposed, a.max}, ctx);
  run_part(quantize_fp8_kernel, {y, {}, {}, a.max}, ctx);
  run_part(quantize_fp8_kernel, {a.x.narrow(1, rotated, a.x.dim(1) - rotated), {}, {}, a.max}, ctx);
}

}  // namespace ring
