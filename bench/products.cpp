#include "bench/products.h"

#include <cmath>

#include "kernels/activation.h"
#include "kernels/elementwise.h"
#include "kernels/fp8_producers.h"
#include "kernels/matmul.h"
#include "kernels/norm.h"
#include "kernels/rope.h"
#include "model/rope.h"

namespace ring {
namespace {

// A kernel and its operands.
struct Job {
  ProductTiming timing;
  bool chosen = false;  // true for the candidate that a run would use
  std::function<void()> call;
  std::vector<double> seconds;
};

struct Quantized {
  Fp8Matrix matrix, transposed;
};

// Blocks of an operand and of its transposed copy, unless they are tensorwise (QuantizeFp8).
struct OperandBlocks {
  Fp8Blocks plain, transposed;
};
constexpr OperandBlocks kInput{Fp8Blocks::rows, Fp8Blocks::squares}, kGradient{Fp8Blocks::rows, Fp8Blocks::rows},
    kWeight{Fp8Blocks::squares, Fp8Blocks::squares};

Quantized empty_operand(const Shape& shape, std::string_view type, OperandBlocks blocks, const ExecContext& ctx) {
  if (type == "fp8_tensor") blocks = {Fp8Blocks::tensor, Fp8Blocks::tensor};
  return {empty_fp8(shape[0], shape[1], blocks.plain, ctx), empty_fp8(shape[1], shape[0], blocks.transposed, ctx)};
}
// Returns the maximum to which tensorwise ops write, undefined for others. It starts at 0, and each call raises it. A
// training step sets the maxima of all its ops to 0 in a single call.
Fp8Max max_for(std::string_view type, const ExecContext& ctx) {
  return {type == "fp8_tensor" ? ctx.zeros({1}) : Tensor{}};
}

// Times several kernels in turn, round by round.
class Bench {
 public:
  explicit Bench(const ExecContext& ctx) : ctx_(ctx) {}

  // Adds all candidates of the slot that support these operands.
  template <class Args>
  void add(const Kernel<Args>& slot, const std::string& work, std::string_view type, const Args& args) {
    const auto& chosen = slot.choose(args, ctx_);
    for (const auto& c : slot.candidates(ctx_.stream.device().backend)) {
      if (c.supports && !c.supports(args, ctx_)) continue;
      jobs_.push_back({.timing = {work, std::string(type), std::string(c.name), cost(args)},
                       .chosen = &c == &chosen,
                       .call = [fn = c.fn, args, ctx = ctx_] { fn(args, ctx); }});
    }
  }

  const std::vector<Job>& measure(double seconds, int rounds) {
    for (int round = 0; round < rounds; ++round)
      for (Job& job : jobs_) job.seconds.push_back(measure_sustained_seconds(ctx_, seconds, job.call));
    for (Job& job : jobs_) job.timing.seconds = median(job.seconds);
    return jobs_;
  }

 private:
  ExecContext ctx_;
  std::vector<Job> jobs_;
};

Quantized quantized(Bench& bench, const std::string& name, std::string_view type, const Tensor& x, OperandBlocks blocks,
                    const ExecContext& ctx) {
  const Quantized q = empty_operand(x.shape(), type, blocks, ctx);
  const QuantizeFp8 args{x, q.matrix, q.transposed, max_for(type, ctx)};
  quantize_fp8_kernel(args, ctx);
  bench.add(quantize_fp8_kernel, str("quantize ", name), type, args);
  return q;
}

void add_linear(Bench& bench, const LinearShape& s, std::int64_t tokens, const ExecContext& ctx) {
  const DType type = activation_type(ctx.precision);
  const Tensor x = random_tensor({tokens, s.inputs}, type, ctx, 1),
               dy = random_tensor({tokens, s.outputs}, type, ctx, 2);
  const Tensor w = random_tensor({s.outputs, s.inputs}, type, ctx, 3), dw = ctx.zeros({s.outputs, s.inputs});
  const Tensor y = ctx.empty({tokens, s.outputs}, type), dx = ctx.empty({tokens, s.inputs}, type);
  const auto usual = [&](const std::string& work, const Matmul& m) {
    bench.add(matmul_kernel, work, to_string(type), m);
  };
  usual("forward", Matmul{.a = x, .b = w, .c = y, .transpose_b = true});
  usual("input gradient", Matmul{.a = dy, .b = w, .c = dx});
  usual("weight gradient", Matmul{.a = dy, .b = x, .c = dw, .transpose_a = true, .beta = 1});
  for (const std::string_view fp8 : kFp8Types) {
    const Quantized qx = quantized(bench, "input", fp8, x, kInput, ctx);
    const Quantized qdy = quantized(bench, "gradient", fp8, dy, kGradient, ctx);
    const Quantized qw = quantized(bench, "weight", fp8, w, kWeight, ctx);
    const auto add = [&](const std::string& work, const MatmulFp8& m) { bench.add(matmul_fp8_kernel, work, fp8, m); };
    add("forward", {qx.matrix, qw.matrix, y});
    add("input gradient", {qdy.matrix, qw.transposed, dx});
    add("weight gradient", {qdy.transposed, qx.transposed, dw, true});
  }
}

// Times an op, and for each FP8 mode the variant of the op that also writes its result [N,C] in FP8.
template <class Op, class OpFp8>
ProducerTiming time_producer(const std::string& name, const Kernel<Op>& slot, const Op& op,
                             const Kernel<OpFp8>& fp8_slot, OpFp8 fp8, const Shape& result, OperandBlocks blocks,
                             double seconds, int rounds, const ExecContext& ctx) {
  Bench bench(ctx);
  bench.add(slot, name, to_string(activation_type(ctx.precision)), op);
  for (const std::string_view type : kFp8Types) {
    const Quantized q = empty_operand(result, type, blocks, ctx);
    fp8.out = q.matrix, fp8.transposed = q.transposed, fp8.max = max_for(type, ctx);
    bench.add(fp8_slot, name, type, fp8);
  }
  ProducerTiming t{.name = name};
  for (const Job& job : bench.measure(seconds, rounds)) {
    const ProductTiming& timing = job.timing;
    t.rows.push_back(timing);
    if (timing.kernel == "separate") t.separate[timing.type] = timing.seconds;
    if (job.chosen) t.fused[timing.type] = timing.seconds;
  }
  return t;
}

}  // namespace

std::vector<LinearShape> block_linears(const ModelConfig& m) {
  const std::int64_t queries = m.heads * m.head_dim, keys = m.kv_heads * m.head_dim;
  const bool gated = is_gated(m.mlp);
  std::vector<LinearShape> all = {{"qkv", queries + 2 * keys, m.width},
                                  {"attention out", m.width, queries},
                                  {gated ? "gate and up" : "up", (gated ? 2 : 1) * m.mlp_width, m.width},
                                  {"down", m.width, m.mlp_width}};
  if (m.attention_output_gate) all.insert(all.begin() + 1, {"attention gate", queries, m.width});
  return all;
}

LinearTiming time_linear(const LinearShape& shape, std::int64_t tokens, double seconds, int rounds,
                         const ExecContext& ctx) {
  Bench bench(ctx);
  add_linear(bench, shape, tokens, ctx);
  LinearTiming t{.shape = shape};
  for (const Job& job : bench.measure(seconds, rounds)) {
    t.rows.push_back(job.timing);
    if (!job.chosen) continue;
    LinearSeconds& of_type = t.seconds[job.timing.type];
    (job.timing.cost.flops == 0 ? of_type.quantization : of_type.products) += job.timing.seconds;
  }
  return t;
}

std::vector<ProducerTiming> time_producers(const ModelConfig& m, std::int64_t tokens, double seconds, int rounds,
                                           const ExecContext& ctx) {
  const DType type = activation_type(ctx.precision);
  std::vector<ProducerTiming> all;
  if (m.norm == NormKind::rms) {
    const Tensor x = random_tensor({tokens, m.width}, type, ctx, 1), w = random_tensor({m.width}, type, ctx, 2);
    const Tensor rstd = ctx.empty({tokens});
    all.push_back(time_producer("rms norm", rms_norm_kernel, {x, w, ctx.empty(x.shape(), type), rstd},
                                rms_norm_fp8_kernel, {x, w, rstd}, x.shape(), kInput, seconds, rounds, ctx));
    all.back().calls = 2;
  }
  if (m.mlp == Mlp::swiglu) {
    const Tensor gate_up = random_tensor({tokens, 2 * m.mlp_width}, type, ctx, 3);
    const Tensor dy = random_tensor({tokens, m.mlp_width}, type, ctx, 4);
    all.push_back(time_producer("swiglu", swiglu_kernel, {gate_up, ctx.empty(dy.shape(), type)}, swiglu_fp8_kernel,
                                {gate_up}, dy.shape(), kInput, seconds, rounds, ctx));
    all.push_back(time_producer("swiglu gradient", swiglu_backward_kernel,
                                {gate_up, dy, ctx.empty(gate_up.shape(), type)}, swiglu_backward_fp8_kernel,
                                {gate_up, dy}, gate_up.shape(), kGradient, seconds, rounds, ctx));
  }
  if (m.positions == Positions::rope && m.rope.partial_rotary_factor == 1 &&
      !m.qk_norm) {  // with qk_norm, a norm reads the result, not a linear layer
    const Tensor dqkv = random_tensor({tokens, (m.heads + 2 * m.kv_heads) * m.head_dim}, type, ctx, 5);
    const Tensor positions = ctx.zeros({tokens}, DType::i32);
    const Tensor inv_freq = from_host(rope_frequencies(m.rope, m.head_dim), ctx.stream);
    const std::int64_t rotated = m.heads + m.kv_heads;
    const Tensor heads = dqkv.narrow(1, 0, rotated * m.head_dim).split_dim(1, m.head_dim);
    all.push_back(time_producer("rope gradient", rope_kernel, {heads, heads, positions, inv_freq, true},
                                rope_fp8_kernel, {dqkv, positions, inv_freq, rotated, true}, dqkv.shape(), kGradient,
                                seconds, rounds, ctx));
  }
  return all;
}

}  // namespace ring
