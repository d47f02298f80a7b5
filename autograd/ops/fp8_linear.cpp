// Linear layers whose three GEMMs read FP8 operands (kernels/fp8.h). Gradients pass through the rounding of operands
// unchanged (straight-through).

#include "autograd/fp8_linear.h"

#include "autograd/ops/linear.h"
#include "comm/communicator.h"
#include "kernels/elementwise.h"

namespace ring {
namespace {

// An Fp8Matrix as a rule saves it.
template <class T>
struct Fp8Values {
  T values, scales;
};

template <class T>
struct ForBackward {
  Fp8Values<T> x;  // transposed copy of x
  T w;
};

enum class Which : std::uint8_t { plain, transposed, both };

bool is_shard(Fp8Shards shards, Fp8Shards operand) {
  return (static_cast<unsigned>(shards) & static_cast<unsigned>(operand)) != 0;
}

// Quantizes x, which is an operand of this kind.
Fp8Copies quantize(const ExecContext& ctx, const Fp8Linear& f, Fp8Shards operand, const Tensor& x, Which copies) {
  const Fp8Blocks blocks = f.tensorwise                   ? Fp8Blocks::tensor
                           : operand == Fp8Shards::weight ? Fp8Blocks::squares
                                                          : Fp8Blocks::rows;
  Fp8Copies q;
  if (copies != Which::transposed) q.plain = empty_fp8(x.dim(0), x.dim(1), blocks, ctx);
  if (copies != Which::plain) q.transposed = empty_fp8(x.dim(1), x.dim(0), blocks, ctx);
  Fp8Max max{f.tensorwise ? ctx.zeros({1}) : Tensor{}};
  if (f.tensorwise && f.tp && is_shard(f.shards, operand)) {
    quantize_fp8_kernel({x, {}, {}, max}, ctx);
    f.tp->all_reduce(max.value, Reduce::max, ctx.stream.record()).wait(ctx.stream);
    max.given = true;
  }
  quantize_fp8_kernel({x, q.plain, q.transposed, max}, ctx);
  return q;
}

// Frees the kept copies of a weight if this is the last backward of the step that reads them.
void release_weight(const Backward& back, const Fp8Linear& f, const SlotPtr& w) {
  if (f.weight && back.final_pass && w && w->uses == 1) *f.weight = {};
}

// Returns w quantized both ways if the copies are kept, else at least the requested copies.
Fp8Copies quantize_weight(const ExecContext& ctx, const Fp8Linear& f, const Tensor& w, Which copies) {
  if (!f.weight) return quantize(ctx, f, Fp8Shards::weight, w, copies);
  if (!f.weight->plain.defined()) *f.weight = quantize(ctx, f, Fp8Shards::weight, w, Which::both);
  return *f.weight;
}

Tensor product(const ExecContext& ctx, const Fp8Linear& f, const Fp8Matrix& x, const LinearInputs<Tensor>& in) {
  const Tensor y = ctx.empty({in.x.dim(0), in.w.dim(0)}, in.x.dtype());
  const Fp8Matrix w = quantize_weight(ctx, f, in.w, Which::plain).plain;
  matmul_fp8_kernel({.a = x, .b = w, .c = y, .bias = in.b, .residual = in.residual}, ctx);
  return y;
}

Tensor forward(const ExecContext& ctx, const Fp8Linear& f, const LinearInputs<Tensor>& in) {
  return product(ctx, f, quantize(ctx, f, Fp8Shards::input, in.x, Which::plain).plain, in);
}

// Adds dy^T x, which the GEMM accumulates in f32. Blockwise kernels write dy^T x in f32 alone.
void weight_gradient(const ExecContext& ctx, const Fp8Matrix& dy, const Fp8Matrix& x, const Sink& dw) {
  const bool adds = dw.beta != 0, f32 = dw.dst.dtype() == DType::f32, tensorwise = dy.blocks == Fp8Blocks::tensor;
  if (f32 || (tensorwise && !adds)) return matmul_fp8_kernel({dy, x, dw.dst, adds}, ctx);
  const Tensor sum = ctx.empty(dw.dst.shape());
  matmul_fp8_kernel({dy, x, sum}, ctx);
  const Tensor rounded = adds ? ctx.empty(dw.dst.shape(), dw.dst.dtype()) : dw.dst;
  cast_kernel({sum, rounded}, ctx);
  if (adds) axpby_kernel({.x = rounded, .y = dw.dst, .out = dw.dst, .alpha = 1, .beta = dw.beta}, ctx);
}

void backward(const Backward& back, const Fp8Linear& f, const LinearInputs<SlotPtr>& inputs,
              const ForBackward<Saved>& saved) {
  const ExecContext& ctx = back.ctx;
  const Tensor &dy = back.grad(), w = saved.w.get(ctx);
  if (inputs.x || inputs.w) {
    const Which copies = !inputs.w ? Which::plain : inputs.x ? Which::both : Which::transposed;
    const Fp8Copies q = quantize(ctx, f, Fp8Shards::output, dy, copies);
    if (inputs.x) {
      const Tensor dx = ctx.empty({dy.dim(0), w.dim(1)}, dy.dtype());
      matmul_fp8_kernel({q.plain, quantize_weight(ctx, f, w, Which::transposed).transposed, dx}, ctx);
      back.accumulate(inputs.x, dx);
    }
    if (inputs.w) {
      const Fp8Values<Tensor> x = get_all(saved.x, ctx);
      const Fp8Blocks blocks = f.tensorwise ? Fp8Blocks::tensor : Fp8Blocks::rows;
      weight_gradient(ctx, q.transposed, {x.values, x.scales, blocks}, back.sink(inputs.w, w.shape(), w.dtype()));
    }
  }
  release_weight(back, f, inputs.w);
  bias_gradient(back, inputs.b, dy, {w.dim(0)}, w.dtype());
  back.accumulate(inputs.residual, dy);
}

Fp8Values<Tensor> transposed_input(const ExecContext& ctx, const Fp8Linear& f, const Tensor& x) {
  const Fp8Matrix m = quantize(ctx, f, Fp8Shards::input, x, Which::transposed).transposed;
  return {m.values, m.scales};
}

}  // namespace

Var fp8_linear(Run& run, const Var& x, const Var& w, const Var& b, const Var& residual, const Fp8Linear& f) {
  check_linear("fp8_linear", x, w, b);
  check_residual("fp8_linear", residual, {x.value.dim(0), w.value.dim(0)});
  const LinearInputs<Var> in{x, w, b, residual};
  const LinearInputs<Tensor> values = values_of(in);
  if (!run.records(in)) return {forward(run.ctx, f, values), nullptr};
  ForBackward<Saved> saved{{}, run.save(w)};
  const bool again = x.recipe || run.recompute;  // backward has x without saving more, so it quantizes x again
  const Fp8Copies q = quantize(run.ctx, f, Fp8Shards::input, x.value, w.slot && !again ? Which::both : Which::plain);
  if (q.transposed.defined()) saved.x = {run.save(q.transposed.values), run.save(q.transposed.scales)};
  if (w.slot && again)
    saved.x = save_to_recompute(
        run.save(x), [f](const ExecContext& ctx, const Tensor& input) { return transposed_input(ctx, f, input); });
  const auto rule = [f](const Backward& back, const LinearInputs<SlotPtr>& inputs, const ForBackward<Saved>& kept) {
    backward(back, f, inputs, kept);
  };
  const Var out = run.record("fp8_linear", product(run.ctx, f, q.plain, values), slots_of(in), saved, rule);
  if (!run.recompute) return out;
  return recomputable(
      out, LinearInputs<Saved>{run.save(x), saved.w, run.save(b), run.save(residual)},
      [f](const ExecContext& ctx, const LinearInputs<Tensor>& inputs) { return forward(ctx, f, inputs); });
}

}  // namespace ring
