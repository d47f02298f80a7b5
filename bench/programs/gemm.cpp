// Compares matrix libraries on the GEMMs of training steps: forward (NT), input gradient (NN) and weight gradient (TN,
// accumulated) of every linear layer. The default library was chosen by this measurement.

#include <chrono>
#include <cstdio>

#include "cli/command.h"
#include "core/cpu/thread_pool.h"
#include "kernels/matmul.h"

namespace ring {
namespace {

struct Layer {
  const char* name;
  std::int64_t outputs, inputs;
  int count;  // number per model
};
struct Model {
  const char* name;
  std::int64_t tokens;
  std::vector<Layer> layers;
};

const std::vector<Model>& models() {
  static const std::vector<Model> all = {
      {"4 layers, 128 wide, 768 tokens",
       768,
       {{"qkv", 384, 128, 4}, {"proj", 128, 128, 4}, {"up", 512, 128, 4}, {"down", 128, 512, 4}, {"head", 65, 128, 1}}},
      {"6 layers, 256 wide, 2048 tokens",
       2048,
       {{"qkv", 768, 256, 6}, {"proj", 256, 256, 6}, {"gate_up", 1376, 256, 6}, {"down", 256, 688, 6}}},
      {"one layer of GPT-2, 1024 tokens",
       1024,
       {{"qkv", 2304, 768, 1}, {"proj", 768, 768, 1}, {"up", 3072, 768, 1}, {"down", 768, 3072, 1}}},
  };
  return all;
}

// A GEMM with its own operands.
struct Product {
  const char* kind;
  Matmul args;
  double flops;
};

std::vector<Product> products(const Layer& l, std::int64_t tokens, const ExecContext& ctx) {
  const auto ones = [&](const Shape& shape) {
    const Tensor t = ctx.empty(shape);
    std::fill_n(t.data<float>(), t.numel(), 1.0f);
    return t;
  };
  const Tensor x = ones({tokens, l.inputs}), w = ones({l.outputs, l.inputs}), dy = ones({tokens, l.outputs});
  const double flops = 2.0 * static_cast<double>(tokens * l.outputs * l.inputs);
  return {{"NT", {.a = x, .b = w, .c = ones({tokens, l.outputs}), .transpose_b = true}, flops},
          {"NN", {.a = dy, .b = w, .c = ones({tokens, l.inputs})}, flops},
          {"TN", {.a = dy, .b = x, .c = ones({l.outputs, l.inputs}), .transpose_a = true, .beta = 1}, flops}};
}

double now() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

// Returns the time of the shortest of many calls, because other processes can only add time.
double fastest(const Kernel<Matmul>::Candidate& library, const Matmul& args, const ExecContext& ctx, double seconds) {
  double best = 1e9;
  const double end = now() + seconds;
  for (int i = 0; i < 5 || now() < end; ++i) {
    const double start = now();
    library.fn(args, ctx);
    best = std::min(best, now() - start);
  }
  return best;
}

void run_model(const Model& model, const ExecContext& ctx, double seconds) {
  const auto& libraries = matmul_kernel.candidates(Backend::cpu);
  std::printf("\n%s: microseconds and GFLOP/s\n%-8s %-3s %17s", model.name, "layer", "", "M x N x K");
  for (const auto& l : libraries) std::printf(" %20s", std::string(l.name).c_str());
  std::vector<double> total(libraries.size());
  for (const Layer& layer : model.layers)
    for (const Product& p : products(layer, model.tokens, ctx)) {
      const auto& a = p.args.a;
      std::printf("\n%-8s %-3s %5ld x %4ld x %4ld", layer.name, p.kind, p.args.c.dim(0), p.args.c.dim(1),
                  a.dim(p.args.transpose_a ? 0 : 1));
      for (std::size_t i = 0; i < libraries.size(); ++i) {
        const double t = fastest(libraries[i], p.args, ctx, seconds);
        total[i] += layer.count * t;
        std::printf("   %9.1f %8.1f", t * 1e6, p.flops / t / 1e9);
      }
      std::fflush(stdout);
    }
  std::printf("\n%-31s", "all products of a step, ms");
  for (double t : total) std::printf("   %9.2f %8s", t * 1e3, "");
  std::printf("\n");
}

}  // namespace
}  // namespace ring

int main(int argc, char** argv) try {
  ring::Program program("bench_gemm", "Compares matrix libraries on the products of training steps");
  int threads = ring::default_threads();
  double seconds = 0.05;
  std::size_t first = ring::models().size();
  program.add_number("--threads", threads, "threads of the pool", 1, ring::kMaxThreads);
  program.add_number("--seconds", seconds, "time spent on each product", 0, 3600);
  program.add_number("--models", first, "number of models to measure, from the first", 0, ring::kMaxCount);
  program.parse({argv + 1, argv + argc});
  const ring::ExecContext ctx{ring::Stream::cpu(threads)};
  std::printf("%d threads; fastest of the calls in %g s each\n", threads, seconds);
  for (std::size_t i = 0; i < std::min(first, ring::models().size()); ++i)
    ring::run_model(ring::models()[i], ctx, seconds);
} catch (const ring::HelpAsked& e) {
  std::fputs(e.text.c_str(), stdout);
} catch (const std::exception& e) {
  std::fprintf(stderr, "bench_gemm: %s\n", e.what());
  return 1;
}
