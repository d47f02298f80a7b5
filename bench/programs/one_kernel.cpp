// Runs one kernel repeatedly on packed documents, with the calls of a training run, and checks that its results repeat.
// Finds the kernel that fails when several processes share a GPU (scripts/launch_failures.sh).

#include <CLI/CLI.hpp>
#include <chrono>
#include <cstdio>
#include <functional>
#include <map>
#include <vector>

#include "bench/attention.h"
#include "core/philox.h"
#include "kernels/attention/blocks.h"
#include "kernels/batched_matmul.h"
#include "kernels/matmul.h"
#include "kernels/norm.h"
#include "kernels/optimizer.h"

namespace ring {
namespace {

constexpr std::uint64_t kPackings = 16;  // different divisions of the batch into documents, used in turn
constexpr int kCallsPerCheck = 5;        // calls before the host waits and compares
constexpr std::int32_t kAlign = 128;     // documents start at multiples of it

struct Options {
  std::string kernel, candidate;
  double seconds = 60;
  std::int64_t rows = 16, context = 2048, heads = 4, head_dim = 64, length = 0, keep = 0;
  bool any_order = false;
};

std::uint32_t draw(std::uint64_t packing, std::uint64_t n, std::uint32_t end) {
  return static_cast<std::uint32_t>(std::uint64_t{random_bits({packing, 0, 1}, n)} * end >> 32);
}

// Fills each row of the batch with documents of random lengths, or of o.length tokens if that is not 0.
std::vector<Span> pack(const Options& o, std::uint64_t packing) {
  std::vector<Span> spans;
  std::uint64_t n = 0;
  const auto context = static_cast<std::int32_t>(o.context);
  for (std::int64_t row = 0; row < o.rows; ++row)
    for (std::int32_t at = 0; at < context;) {
      if (o.length > 0) {
        const auto count = std::min(static_cast<std::int32_t>(o.length), context - at);
        spans.push_back({static_cast<std::int32_t>(row * o.context) + at, count, at, at});
        at += count;
        continue;
      }
      const std::uint32_t left = static_cast<std::uint32_t>((context - at) / kAlign);
      const auto slot = static_cast<std::int32_t>(kAlign * (1 + draw(packing, n++, left)));
      const auto count = slot - static_cast<std::int32_t>(draw(packing, n++, kAlign / 2));
      spans.push_back({static_cast<std::int32_t>(row * o.context) + at, count, at, at});
      at += slot;
    }
  return spans;
}

Pattern pattern_of(const Options& o) {
  Pattern p;
  const BlockRule rule{.kind = BlockRuleKind::content, .first = 1, .keep = static_cast<std::int32_t>(o.keep)};
  if (o.keep > 0) p.blocks = std::make_shared<BlockPattern>(64, std::vector{rule});
  return p;
}

// A kernel with its operands. call() runs it on rows packed with these documents and writes `results`, so that two
// calls can be compared.
struct Work {
  std::function<void(const std::vector<Span>&)> call;
  std::vector<Tensor> results;
};

template <class Args>
const typename Kernel<Args>::Candidate& candidate_of(const Kernel<Args>& slot, const Options& o, const Args& args,
                                                     const ExecContext& ctx) {
  std::string names;
  for (const auto& c : slot.candidates(ctx.stream.device().backend)) {
    if (c.name == o.candidate || o.candidate.empty()) {
      if (!c.supports || c.supports(args, ctx)) return c;
      if (!o.candidate.empty()) fail("--candidate: ", c.name, " does not support these operands; give a different one");
    }
    names += str(names.empty() ? "" : ", ", c.name);
  }
  fail("--candidate: expected one of ", names, ", got '", o.candidate, "'");
}

Work attention_work(const Options& o, const ExecContext& ctx) {
  auto p = std::make_shared<AttentionOperands>(random_operands(o.rows * o.context, o.heads, o.heads, o.head_dim, ctx));
  p->forward.pattern = p->backward.pattern = pattern_of(o);
  const bool backward = o.kernel == "backward", select = o.kernel == "select";
  const auto set = [p, ctx](const std::vector<Span>& spans) {
    for (std::vector<Span>* of : {&p->forward.queries, &p->forward.keys, &p->backward.queries, &p->backward.keys})
      *of = spans;
    p->forward.selection = p->backward.selection =
        select_blocks(p->forward.pattern, p->forward.q, p->forward.k, p->forward.scale, spans, ctx);
  };
  const Tensor gradients =
      Tensor::wrap(p->backward.dq.storage(), {o.rows * o.context * 3 * o.heads * o.head_dim}, DType::bf16);
  if (select) return {[p, set](const std::vector<Span>& spans) { set(spans); }, {}};
  return {[=](const std::vector<Span>& spans) {
            set(spans);
            if (!backward) return candidate_of(attention_kernel, o, p->forward, ctx).fn(p->forward, ctx);
            attention_kernel(p->forward, ctx);
            candidate_of(attention_backward_kernel, o, p->backward, ctx).fn(p->backward, ctx);
          },
          {backward ? gradients : p->forward.out}};
}

Work matmul_work(const Options& o, const ExecContext& ctx) {
  const std::int64_t n = o.rows * o.context, width = o.heads * o.head_dim;
  const DType type = DType::bf16;
  const Matmul product{.a = random_tensor({n, width}, type, ctx, 1),
                       .b = random_tensor({3 * width, width}, type, ctx, 2),
                       .c = ctx.empty({n, 3 * width}, type),
                       .transpose_b = true};
  const Matmul gradient{.a = product.c, .b = product.a, .c = ctx.empty({3 * width, width}), .transpose_a = true};
  const Tensor square = random_tensor({3, width, width}, type, ctx, 3);
  const BatchedMatmul muon{.a = square, .b = square, .c = ctx.empty({3, width, width}, type), .transpose_b = true};
  return {[=](const std::vector<Span>&) {
            matmul_kernel(product, ctx);
            matmul_kernel(gradient, ctx);
            batched_matmul_kernel(muon, ctx);
          },
          {product.c, gradient.c, muon.c}};
}

Work norm_work(const Options& o, const ExecContext& ctx) {
  const std::int64_t n = o.rows * o.context, width = o.heads * o.head_dim;
  const DType type = DType::bf16;
  const Tensor x = random_tensor({n, width}, type, ctx, 1), w = random_tensor({width}, type, ctx, 2);
  const RmsNorm norm{.x = x, .w = w, .y = ctx.empty({n, width}, type), .rstd = ctx.empty({n})};
  const RmsNormBackward back{.x = x,
                             .w = w,
                             .rstd = norm.rstd,
                             .dy = random_tensor({n, width}, type, ctx, 3),
                             .dx = ctx.empty({n, width}, type),
                             .dw = ctx.empty({width})};
  return {[=](const std::vector<Span>&) {
            rms_norm_kernel(norm, ctx);
            rms_norm_backward_kernel(back, ctx);
          },
          {norm.y, back.dx, back.dw}};
}

Work work_of(const Options& o, const ExecContext& ctx) {
  using Make = Work (*)(const Options&, const ExecContext&);
  static const std::map<std::string, Make> all = {{"forward", attention_work},
                                                  {"backward", attention_work},
                                                  {"select", attention_work},
                                                  {"matmul", matmul_work},
                                                  {"norm", norm_work}};
  return all.at(o.kernel)(o, ctx);
}

// Returns the sum of squares of all results, which is equal for equal work.
float digest(const Work& work, const ExecContext& ctx) {
  const Tensor sum = ctx.zeros({1});
  for (const Tensor& t : work.results) squared_norm_kernel({t, sum}, ctx);
  float host = 0;
  ctx.stream.impl().copy(&host, sum.raw(), sizeof host);
  ctx.stream.synchronize();  // host waits: diagnosis
  return host;
}

int run(const Options& o) {
  ExecContext ctx{Stream::create({Backend::cuda, 0})};
  ctx.precision = Precision::bf16;
  ctx.deterministic = !o.any_order;
  const Work work = work_of(o, ctx);
  std::vector<std::vector<Span>> packings;
  for (std::uint64_t i = 0; i < kPackings; ++i) packings.push_back(pack(o, i));
  std::vector<float> expected;
  long calls = 0, wrong = 0;
  const auto begin = std::chrono::steady_clock::now();
  const auto passed = [&] { return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count(); };
  for (std::uint64_t i = 0; passed() < o.seconds; ++i) {
    for (int n = 0; n < kCallsPerCheck; ++n, ++calls) work.call(packings[i % kPackings]);
    const float sum = digest(work, ctx);
    if (i < kPackings) expected.push_back(sum);
    if (!o.any_order && !(sum == expected[i % kPackings])) ++wrong;
  }
  std::printf("%ld calls of %.0f us, %ld results differ from the first results\n", calls,
              1e6 * passed() / static_cast<double>(calls), wrong);
  return wrong > 0;
}

}  // namespace
}  // namespace ring

int main(int argc, char** argv) try {
  ring::Options o;
  CLI::App app{"Runs one kernel on packed documents for a while, on the first GPU"};
  app.add_option("kernel", o.kernel, "forward, backward (of attention), select, matmul or norm")
      ->required()
      ->check(CLI::IsMember({"forward", "backward", "select", "matmul", "norm"}));
  app.add_option("--candidate", o.candidate, "attention kernel: own_sm90, own_mma, cudnn or own_simt");
  app.add_option("--seconds", o.seconds)->check(CLI::Range(0.0, 86400.0));
  app.add_option("--rows", o.rows, "rows of the batch")->check(CLI::Range(1, 4096));
  app.add_option("--context", o.context, "tokens per row, a multiple of 128")->check(CLI::Range(128, 1 << 20));
  app.add_option("--length", o.length, "tokens per document; 0 for random lengths")->check(CLI::Range(0, 1 << 20));
  app.add_option("--heads", o.heads)->check(CLI::Range(1, 256));
  app.add_option("--head-dim", o.head_dim)->check(CLI::Range(8, 256));
  app.add_option("--keep", o.keep, "number of blocks of 64 that content selects; 0 for dense attention")
      ->check(CLI::Range(0, 4096));
  app.add_flag("--any-order", o.any_order, "allow sums in any order; results are then not compared");
  CLI11_PARSE(app, argc, argv);
  return ring::run(o);
} catch (const std::exception& e) {
  std::fprintf(stderr, "bench_one_kernel: %s\n", e.what());
  return 1;
}
