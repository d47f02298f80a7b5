// Linear layers whose three GEMMs read FP8 operands (kernels/fp8.h). Gradients pass through the rounding of operands
// unchanged (straight-through).

#include "autograd/fp8_linear.h"

#include "autograd/ops/linear.h"
#include "autograd/ops/swiglu.h"
#include "comm/communicator.h"
#include "kernels/elementwise.h"
#include "kernels/fp8_producers.h"

namespace ring {
namespace {

// The tensors of an Fp8Matrix: T is Tensor, or Saved in a backward rule.
template <class T>
struct Fp8Values {
  T values, scales;
};

template <class T>
struct Fp8ForBackward {
  Fp8Values<T> x;  // transposed copy of the input
  T w;
  Fp8Values<T> gate_up;  // undefined unless the input is swiglu(gate_up); without scales it is not in FP8
};

enum class Which : std::uint8_t { plain, transposed, both };

bool is_shard(Fp8Shards shards, Fp8Shards operand) {
  return (static_cast<unsigned>(shards) & static_cast<unsigned>(operand)) != 0;
}

// Returns true if the maximum of this operand is taken over this process's part alone.
bool has_own_max(const Fp8Linear& f, Fp8Shards operand) {
  return f.tensorwise && !(f.tp && is_shard(f.shards, operand));
}

// Quantizes an operand [rows,columns] of the layer by calling write(out, transposed,
// max), with arguments as in QuantizeFp8. In tensorwise mode, reduces the maximum of
// a sharded operand over the processes. known: the maximum, if already computed.
template <class Write>
Fp8Copies quantize(const ExecContext& ctx, const Fp8Linear& f, Fp8Shards operand, std::int64_t rows,
                   std::int64_t columns, Which copies, const Write& write, const Tensor& known = {}) {
  const auto blocks = [&](bool squares) {
    return f.tensorwise ? Fp8Blocks::tensor : squares ? Fp8Blocks::squares : Fp8Blocks::rows;
  };
  Fp8Copies q;
  if (copies != Which::transposed) q.plain = empty_fp8(rows, columns, blocks(operand == Fp8Shards::weight), ctx);
  if (copies != Which::plain) q.transposed = empty_fp8(columns, rows, blocks(operand != Fp8Shards::output), ctx);
  if (known.defined() && has_own_max(f, operand)) {
    write(q.plain, q.transposed, Fp8Max{known, true});
    return q;
  }
  Fp8Max max{f.tensorwise ? ctx.zeros({1}) : Tensor{}};
  if (f.tensorwise && !has_own_max(f, operand)) {
    write(Fp8Matrix{}, Fp8Matrix{}, max);
    f.tp->all_reduce(max.value, Reduce::max, ctx.stream.record()).wait(ctx.stream);
    max.given = true;
  }
  write(q.plain, q.transposed, max);
  return q;
}

Fp8Copies quantize(const ExecContext& ctx, const Fp8Linear& f, Fp8Shards operand, const Tensor& x, Which copies,
                   const Tensor& known = {}) {
  const auto write = [&](const Fp8Matrix& out, const Fp8Matrix& transposed, const Fp8Max& max) {
    quantize_fp8_kernel({x, out, transposed, max}, ctx);
  };
  return quantize(ctx, f, operand, x.dim(0), x.dim(1), copies, write, known);
}

// Returns x, or, if f.fp8_gate_up is set, x in FP8.
Fp8Values<Tensor> source_of(const ExecContext& ctx, const Fp8Linear& f, const Tensor& x) {
  if (!f.fp8_gate_up) return {x, {}};
  const Fp8Matrix rounded = empty_fp8(x.dim(0), x.dim(1), Fp8Blocks::rows, ctx);
  quantize_fp8_kernel({x, rounded, {}}, ctx);
  return {rounded.values, rounded.scales};
}

// Quantizes the layer's input: x or, if f.swiglu is set, swiglu(x). x: what source_of() returned; type: that of the
// tensor it was given.
Fp8Copies quantize_input(const ExecContext& ctx, const Fp8Linear& f, const Fp8Values<Tensor>& x, DType type,
                         Which copies) {
  if (!f.swiglu) return quantize(ctx, f, Fp8Shards::input, x.values, copies);
  const auto write = [&](const Fp8Matrix& out, const Fp8Matrix& transposed, const Fp8Max& max) {
    if (f.fp8_gate_up)
      swiglu_fp8_kernel({{}, out, transposed, max, {x.values, x.scales}, type}, ctx);
    else
      swiglu_fp8_kernel({x.values, out, transposed, max}, ctx);
  };
  return quantize(ctx, f, Fp8Shards::input, x.values.dim(0), x.values.dim(1) / 2, copies, write);
}

// Quantizes the gradient of the output. A deferred gradient is computed directly in FP8.
Fp8Copies quantize_gradient(const Backward& back, const Fp8Linear& f, Which copies) {
  const std::shared_ptr<const DeferredGradient> deferred = back.take_deferred();
  if (!deferred) return quantize(back.ctx, f, Fp8Shards::output, back.grad(), copies, back.max());
  const auto write = [&](const Fp8Matrix& out, const Fp8Matrix& transposed, const Fp8Max& max) {
    deferred->quantize(back.ctx, out, transposed, max);
  };
  return quantize(back.ctx, f, Fp8Shards::output, deferred->shape[0], deferred->shape[1], copies, write);
}

// Frees the kept copies of a weight if this is the last backward of the step that reads them.
void release_weight(const Backward& back, const Fp8Linear& f, const SlotPtr& w) {
  if (f.weight && back.final_pass && w && w->uses == 1) *f.weight = {};
}

// Returns the requested copies of a weight that was gathered in FP8.
Fp8Copies copies_of_gathered(const ExecContext& ctx, const Fp8Matrix& w, Which copies) {
  Fp8Copies q{w, {}};
  if (copies == Which::plain) return q;
  q.transposed = empty_fp8(w.values.dim(1), w.values.dim(0), w.blocks, ctx);
  transpose_fp8_kernel({w, q.transposed}, ctx);
  return q;
}

// Returns the quantized w. If f.weight keeps copies, quantizes both w and its transpose at the first use; otherwise
// only the requested copies.
Fp8Copies quantize_weight(const ExecContext& ctx, const Fp8Linear& f, const Tensor& w, Which copies) {
  if (f.gathered) return copies_of_gathered(ctx, *f.gathered, copies);
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
  const Fp8Matrix x = quantize_input(ctx, f, source_of(ctx, f, in.x), in.x.dtype(), Which::plain).plain;
  return product(ctx, f, x, in);  // the result of source_of() is already freed here
}

// Adds dy^T x. The GEMM accumulates only in f32.
void weight_gradient(const ExecContext& ctx, const Fp8Matrix& dy, const Fp8Matrix& x, const Sink& dw) {
  const bool adds = dw.beta != 0;
  if (!adds || dw.dst.dtype() == DType::f32) return matmul_fp8_kernel({dy, x, dw.dst, adds}, ctx);
  const Tensor rounded = ctx.empty(dw.dst.shape(), dw.dst.dtype());
  matmul_fp8_kernel({dy, x, rounded}, ctx);
  axpby_kernel({.x = rounded, .y = dw.dst, .out = dw.dst, .alpha = 1, .beta = dw.beta}, ctx);
}

// Returns true if the backward reads the output's gradient only in FP8.
bool reads_only_fp8(const LinearInputs<SlotPtr>& inputs) { return !inputs.b && !inputs.residual; }

// Adds to the gradient of x, given dx, the gradient of the layer's input (which is swiglu(x) if f.swiglu is set).
void accumulate_input_gradient(const Backward& back, const Fp8Linear& f, const SlotPtr& x,
                               const Fp8Values<Saved>& saved, const Tensor& dx) {
  if (!f.swiglu) return back.accumulate(x, dx);
  const Fp8Values<Tensor> gate_up = get_all(saved, back.ctx);
  if (f.fp8_gate_up)
    back.accumulate(x, swiglu_gradient({}, dx, {gate_up.values, gate_up.scales}));
  else
    back.accumulate(x, swiglu_gradient(gate_up.values, dx));
}

// type: the type of x and of the gradient of x.
void backward(const Backward& back, const Fp8Linear& f, DType type, const LinearInputs<SlotPtr>& inputs,
              const Fp8ForBackward<Saved>& saved) {
  const ExecContext& ctx = back.ctx;
  const Tensor w = saved.w.get(ctx);
  if (inputs.x || inputs.w) {
    const Which copies = !inputs.w ? Which::plain : inputs.x ? Which::both : Which::transposed;
    const Fp8Copies dy = quantize_gradient(back, f, copies);
    if (inputs.x) {
      const Tensor dx = ctx.empty({dy.plain.values.dim(0), w.dim(1)}, type);
      matmul_fp8_kernel({dy.plain, quantize_weight(ctx, f, w, Which::transposed).transposed, dx}, ctx);
      accumulate_input_gradient(back, f, inputs.x, saved.gate_up, dx);
    }
    if (inputs.w) {
      const Fp8Values<Tensor> x = get_all(saved.x, ctx);
      const Fp8Blocks blocks = f.tensorwise ? Fp8Blocks::tensor : Fp8Blocks::squares;
      weight_gradient(ctx, dy.transposed, {x.values, x.scales, blocks}, back.sink(inputs.w, w.shape(), w.dtype()));
    }
  }
  release_weight(back, f, inputs.w);
  if (reads_only_fp8(inputs)) return;
  bias_gradient(back, inputs.b, back.grad(), {w.dim(0)}, w.dtype());
  back.accumulate(inputs.residual, back.grad());
}

// Saves source_of(x), or recomputes it in the backward.
Fp8Values<Saved> save_source(const Run& run, const Fp8Linear& f, const Var& x, const Fp8Values<Tensor>& source,
                             bool again) {
  if (!f.fp8_gate_up) return {run.save(x), {}};
  if (!again) return {run.save(source.values), run.save(source.scales)};
  return save_to_recompute(run.save(x),
                           [f](const ExecContext& ctx, const Tensor& in) { return source_of(ctx, f, in); });
}

// Returns a recipe by which the backward computes the transposed copy of the layer's input from source_of(x).
Fp8Values<Saved> recompute_transposed(const Fp8Linear& f, const Fp8Values<Saved>& source, DType type) {
  return save_to_recompute(source, [f, type](const ExecContext& ctx, const Fp8Values<Tensor>& in) {
    const Fp8Matrix m = quantize_input(ctx, f, in, type, Which::transposed).transposed;
    return Fp8Values<Tensor>{m.values, m.scales};
  });
}

// Returns the quantized input of a recorded layer. Saves what the backward reads of it.
Fp8Matrix quantize_and_save(const Run& run, const Fp8Linear& f, const Var& x, const Var& w,
                            Fp8ForBackward<Saved>& saved) {
  const DType type = x.value.dtype();
  const bool again = x.recipe || run.saving.recompute;  // true if backward gets x anyway: then it quantizes x again
  const Fp8Values<Tensor> source = source_of(run.ctx, f, x.value);
  const bool reads_source = f.swiglu && x.slot;
  if (reads_source || (w.slot && again)) {
    const Fp8Values<Saved> kept = save_source(run, f, x, source, again);
    if (reads_source) saved.gate_up = kept;
    if (w.slot && again) saved.x = recompute_transposed(f, kept, type);
  }
  const Fp8Copies q = quantize_input(run.ctx, f, source, type, w.slot && !again ? Which::both : Which::plain);
  if (q.transposed.defined()) saved.x = {run.save(q.transposed.values), run.save(q.transposed.scales)};
  return q.plain;
}

}  // namespace

Var fp8_linear(Run& run, const Var& x, const Var& w, const Var& b, const Var& residual, const Fp8Linear& f) {
  const std::int64_t width = x.value.dim(1) / (f.swiglu ? 2 : 1);
  check_linear("fp8_linear", {x.value.narrow(1, 0, width), nullptr}, w, b);
  check_residual("fp8_linear", residual, {x.value.dim(0), w.value.dim(0)});
  RING_CHECK(!f.fp8_gate_up || (f.swiglu && width % kFp8Block == 0), "fp8_linear: fp8_gate_up with ", width,
             " inputs, expected swiglu(x) with a multiple of ", kFp8Block);
  const LinearInputs<Var> in{x, w, b, residual};
  const LinearInputs<Tensor> values = values_of(in);
  if (!run.records(in)) return {forward(run.ctx, f, values), nullptr};
  Fp8ForBackward<Saved> saved{{}, run.save(w), {}};
  const Fp8Matrix quantized = quantize_and_save(run, f, x, w, saved);
  const auto rule = [f, type = x.value.dtype()](const Backward& back, const LinearInputs<SlotPtr>& inputs,
                                                const Fp8ForBackward<Saved>& kept) {
    backward(back, f, type, inputs, kept);
  };
  const Var out = run.record("fp8_linear", product(run.ctx, f, quantized, values), slots_of(in), saved, rule);
  out.slot->reads_fp8 = reads_only_fp8(slots_of(in));
  out.slot->reads_max = has_own_max(f, Fp8Shards::output);
  if (!run.saving.recompute) return out;
  return recomputable(
      out, LinearInputs<Saved>{run.save(x), saved.w, run.save(b), run.save(residual)},
      [f](const ExecContext& ctx, const LinearInputs<Tensor>& inputs) { return forward(ctx, f, inputs); });
}

}  // namespace ring
