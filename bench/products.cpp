#include "bench/products.h"

#include <cmath>

#include "kernels/elementwise.h"
#include "kernels/fp8.h"
#include "kernels/matmul.h"

namespace ring {
namespace {

// A kernel on its operands.
struct Job {
  ProductTiming timing;
  bool chosen = false;  // the candidate that a run would use
  std::function<void()> call;
  std::vector<double> seconds;
};

struct Quantized {
  Fp8Matrix rows, transposed;
};

class Bench {
 public:
  Bench(const LinearShape& s, std::int64_t tokens, const ExecContext& ctx) : ctx_(ctx) {
    const DType type = activation_type(ctx.precision);
    const Tensor x = random_tensor({tokens, s.inputs}, type, ctx, 1),
                 dy = random_tensor({tokens, s.outputs}, type, ctx, 2);
    const Tensor w = random_tensor({s.outputs, s.inputs}, type, ctx, 3), dw = ctx.zeros({s.outputs, s.inputs});
    const Tensor y = ctx.empty({tokens, s.outputs}, type), dx = ctx.empty({tokens, s.inputs}, type);
    add("forward", Matmul{.a = x, .b = w, .c = y, .transpose_b = true});
    add("input gradient", Matmul{.a = dy, .b = w, .c = dx});
    add("weight gradient", Matmul{.a = dy, .b = x, .c = dw, .transpose_a = true, .beta = 1});
    const Quantized qx = quantized("input", x, Fp8Blocks::rows), qdy = quantized("gradient", dy, Fp8Blocks::rows);
    const Quantized qw = quantized("weight", w, Fp8Blocks::squares);
    add("forward", MatmulFp8{qx.rows, qw.rows, y});
    add("input gradient", MatmulFp8{qdy.rows, qw.transposed, dx});
    add("weight gradient", MatmulFp8{qdy.transposed, qx.transposed, dw, true});
  }

  LinearTiming measure(const LinearShape& shape, double seconds, int rounds) {
    for (int round = 0; round < rounds; ++round)
      for (Job& job : jobs_) job.seconds.push_back(sustained_seconds(ctx_, seconds, job.call));
    LinearTiming t{.shape = shape};
    for (Job& job : jobs_) {
      job.timing.seconds = median(job.seconds);
      t.rows.push_back(job.timing);
      if (!job.chosen) continue;
      if (job.timing.cost.flops == 0)
        t.quantization += job.timing.seconds;
      else
        (job.timing.kernel.starts_with("fp8") ? t.fp8 : t.usual) += job.timing.seconds;
    }
    return t;
  }

 private:
  // Returns all candidates of the slot that support these operands.
  template <class Args>
  void add(const Kernel<Args>& slot, const std::string& work, const std::string& type, const Args& args) {
    const auto& chosen = slot.choose(args, ctx_);
    for (const auto& c : slot.candidates(ctx_.stream.device().backend)) {
      if (c.supports && !c.supports(args, ctx_)) continue;
      jobs_.push_back({.timing = {work, str(type, ' ', c.name), cost(args)},
                       .chosen = &c == &chosen,
                       .call = [fn = c.fn, args, ctx = ctx_] { fn(args, ctx); }});
    }
  }
  void add(const std::string& work, const Matmul& m) { add(matmul_kernel, work, str(m.a.dtype()), m); }
  void add(const std::string& work, const MatmulFp8& m) { add(matmul_fp8_kernel, work, "fp8", m); }

  Quantized quantized(const std::string& name, const Tensor& x, Fp8Blocks blocks) {
    const Quantized q{empty_fp8(x.dim(0), x.dim(1), blocks, ctx_), empty_fp8(x.dim(1), x.dim(0), blocks, ctx_)};
    const QuantizeFp8 args{x, q.rows, q.transposed};
    quantize_fp8_kernel(args, ctx_);
    add(quantize_fp8_kernel, str("quantize ", name), "fp8", args);
    return q;
  }

  ExecContext ctx_;
  std::vector<Job> jobs_;
};

}  // namespace

std::vector<LinearShape> block_linears(const ModelConfig& m) {
  const std::int64_t queries = m.heads * m.head_dim, keys = m.kv_heads * m.head_dim;
  const bool gated = m.mlp == Mlp::swiglu;
  return {{"qkv", queries + 2 * keys, m.width},
          {"attention out", m.width, queries},
          {gated ? "gate and up" : "up", (gated ? 2 : 1) * m.mlp_width, m.width},
          {"down", m.width, m.mlp_width}};
}

LinearTiming time_linear(const LinearShape& shape, std::int64_t tokens, double seconds, int rounds,
                         const ExecContext& ctx) {
  return Bench(shape, tokens, ctx).measure(shape, seconds, rounds);
}

}  // namespace ring
