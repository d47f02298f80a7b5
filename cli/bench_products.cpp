#include <CLI/CLI.hpp>
#include <iostream>

#include "bench/products.h"
#include "cli/bench.h"
#include "cli/data_text.h"
#include "cli/number_option.h"
#include "cli/print.h"
#include "cli/table.h"
#include "engine/devices.h"
#include "engine/resolve.h"
#include "text/tokenizer.h"

namespace ring {
namespace {

struct Arguments {
  BenchConfig config;
  std::int64_t tokens = 0;
  double seconds = 0.1;
  int rounds = 3;
};

using Rows = std::vector<std::vector<std::string>>;

std::string rate_of(const ProductTiming& p) {
  if (p.cost.flops > 0) return str(fixed(1e-12 * p.cost.flops / p.seconds, 1), " TFLOP/s");
  return str(fixed(1e-9 * p.cost.bytes / p.seconds, 0), " GB/s");
}

void print_rows(const std::vector<ProductTiming>& timings) {
  Rows rows = {{"work", "kernel", "shape", "us", "rate"}};
  for (const ProductTiming& p : timings)
    rows.push_back({p.work, p.kernel, p.cost.shape, fixed(1e6 * p.seconds, 1), rate_of(p)});
  print_table(rows, 3);
  print_format("\n");
  std::cout.flush();
}

void print_linear(const LinearTiming& t) {
  print_format("%s: %lld outputs, %lld inputs\n", t.shape.name.c_str(), static_cast<long long>(t.shape.outputs),
               static_cast<long long>(t.shape.inputs));
  print_rows(t.rows);
}

// Prints a line for each op that can quantize its result. Returns the seconds of a block that this saves.
double print_producers(const std::vector<ProducerTiming>& all, const std::string& type) {
  Rows rows = {{"op", "calls", str(type, " us"), "then quantize us", "fp8 us"}};
  double saved = 0;
  for (const ProducerTiming& t : all) {
    rows.push_back(
        {t.name, str(t.calls), fixed(1e6 * t.usual, 1), fixed(1e6 * t.separate, 1), fixed(1e6 * t.fused, 1)});
    saved += t.calls * (t.separate - t.fused);
  }
  if (all.empty()) return 0;
  print_table(rows, 1);
  print_format("\n");
  return saved;
}

// Prints a line for each linear layer, their sum, and the sum with ops that quantize their own output, which saves
// `saved` seconds.
void print_sums(const std::vector<LinearTiming>& all, double saved, const std::string& type) {
  Rows rows = {{"linear", str(type, " us"), "fp8 us", "quantize us", "fp8 faster", "with quantizing"}};
  const auto add = [&](const std::string& name, double usual, double fp8, double quantization) {
    rows.push_back({name, fixed(1e6 * usual, 1), fixed(1e6 * fp8, 1), fixed(1e6 * quantization, 1),
                    str(fixed(usual / fp8, 2), 'x'), str(fixed(usual / (fp8 + quantization), 2), 'x')});
  };
  double usual = 0, fp8 = 0, quantization = 0;
  for (const LinearTiming& t : all) {
    add(t.shape.name, t.usual, t.fp8, t.quantization);
    usual += t.usual, fp8 += t.fp8, quantization += t.quantization;
  }
  add("block", usual, fp8, quantization);
  if (saved != 0) add("block, fused", usual, fp8, quantization - saved);
  print_table(rows, 1);
}

void run(const Arguments& a) {
  const Config config = resolve_config(a.config.load(), bytes_tokenizer()->vocab_size());
  const ExecContext ctx = make_exec_context(config);
  const std::int64_t sequences = config.train.micro_batch > 0 ? config.train.micro_batch : config.train.batch_size;
  const std::int64_t tokens = a.tokens > 0 ? a.tokens : sequences * config.model.context;
  const std::string type(to_string(activation_type(ctx.precision)));
  print_format("%s, %lld tokens, %s\n\n", a.config.name().c_str(), static_cast<long long>(tokens), type.c_str());
  std::vector<LinearTiming> all;
  for (const LinearShape& shape : block_linears(config.model)) {
    all.push_back(time_linear(shape, tokens, a.seconds, a.rounds, ctx));
    print_linear(all.back());
  }
  const std::vector<ProducerTiming> producers = time_producers(config.model, tokens, a.seconds, a.rounds, ctx);
  for (const ProducerTiming& t : producers) print_rows(t.rows);
  const double saved = print_producers(producers, type);
  print_sums(all, saved, type);
}

}  // namespace

void add_bench_products(CLI::App& bench) {
  CLI::App* cmd = bench.add_subcommand("products", "Matrix products of a model's linear layers, also in FP8");
  auto a = std::make_shared<Arguments>();
  a->config.add_to(*cmd);
  add_number(*cmd, "--tokens", a->tokens, "Rows of each product; 0: as in a micro-batch", 0, 1 << 24);
  add_number(*cmd, "--seconds", a->seconds, "Time of each measurement", 1e-6, 3600)->capture_default_str();
  add_number(*cmd, "--rounds", a->rounds, "Measure all kernels in turn, so many times, and take the medians", 1, 1000)
      ->capture_default_str();
  cmd->footer("Example: ringmaster bench products bench/shapes/1b.yaml --tokens 4096");
  cmd->callback([a] { run(*a); });
}

}  // namespace ring
