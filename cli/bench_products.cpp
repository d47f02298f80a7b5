#include <iostream>
#include <map>

#include "bench/products.h"
#include "cli/bench.h"
#include "cli/command.h"
#include "cli/data_text.h"
#include "cli/print.h"
#include "cli/table.h"
#include "engine/devices.h"
#include "engine/resolve.h"
#include "text/tokenizer.h"

namespace ring {
namespace {

struct ProductArguments {
  BenchConfig config;
  std::int64_t tokens = 0;
  double seconds = 0.1;
  int rounds = 3;
};

using Rows = std::vector<std::vector<std::string>>;

std::string rate_of(const ProductTiming& p) {
  if (p.cost.flops > 0) return str(format_fixed(1e-12 * p.cost.flops / p.seconds, 1), " TFLOP/s");
  return str(format_fixed(1e-9 * p.cost.bytes / p.seconds, 0), " GB/s");
}

void print_rows(const std::vector<ProductTiming>& timings) {
  Rows rows = {{"work", "kernel", "shape", "us", "rate"}};
  for (const ProductTiming& p : timings)
    rows.push_back({p.work, str(p.type, ' ', p.kernel), p.cost.shape, format_fixed(1e6 * p.seconds, 1), rate_of(p)});
  print_table(rows, 3);
  print_format("\n");
  std::cout.flush();
}

void print_linear(const LinearTiming& t) {
  print_format("%s: %lld outputs, %lld inputs\n", t.shape.name.c_str(), static_cast<long long>(t.shape.outputs),
               static_cast<long long>(t.shape.inputs));
  print_rows(t.rows);
}

// Prints a line for each op that can quantize its result. Returns the seconds that this saves per transformer block,
// for each FP8 type.
std::map<std::string_view, double> print_producers(const std::vector<ProducerTiming>& all, const std::string& usual) {
  std::vector<std::string> titles = {"op", "calls", str(usual, " us")};
  for (const std::string_view type : kFp8Types) titles.insert(titles.end(), {"then quantize us", str(type, " us")});
  Rows rows = {titles};
  std::map<std::string_view, double> saved;
  for (const ProducerTiming& t : all) {
    rows.push_back({t.name, str(t.calls), format_fixed(1e6 * t.fused.at(usual), 1)});
    for (const std::string_view type : kFp8Types) {
      const double separate = t.separate.find(type)->second, fused = t.fused.find(type)->second;
      rows.back().insert(rows.back().end(), {format_fixed(1e6 * separate, 1), format_fixed(1e6 * fused, 1)});
      saved[type] += t.calls * (separate - fused);
    }
  }
  if (all.empty()) return saved;
  print_table(rows, 1);
  print_format("\n");
  return saved;
}

// Prints a line for each linear layer, the sum of all layers, and the sum with ops that quantize their own output,
// which saves `saved` seconds.
void print_sums(const std::vector<LinearTiming>& all, double saved, const std::string& usual, std::string_view type) {
  Rows rows = {{"linear", str(usual, " us"), str(type, " us"), "quantize us", "faster", "with quantizing"}};
  const auto add = [&](const std::string& name, double before, const LinearSeconds& s) {
    rows.push_back({name, format_fixed(1e6 * before, 1), format_fixed(1e6 * s.products, 1),
                    format_fixed(1e6 * s.quantization, 1), str(format_fixed(before / s.products, 2), 'x'),
                    str(format_fixed(before / (s.products + s.quantization), 2), 'x')});
  };
  double before = 0;
  LinearSeconds sum;
  for (const LinearTiming& t : all) {
    const LinearSeconds& s = t.seconds.find(type)->second;
    add(t.shape.name, t.seconds.at(usual).products, s);
    before += t.seconds.at(usual).products, sum.products += s.products, sum.quantization += s.quantization;
  }
  add("block", before, sum);
  if (saved != 0) add("block, fused", before, {sum.products, sum.quantization - saved});
  print_table(rows, 1);
  print_format("\n");
}

void run_products(const ProductArguments& a) {
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
  std::map<std::string_view, double> saved = print_producers(producers, type);
  for (const std::string_view fp8 : kFp8Types) print_sums(all, saved[fp8], type, fp8);
}

}  // namespace

void add_bench_products(Command bench) {
  const Command cmd =
      bench.add_subcommand("products", "Measure matrix products of a model's linear layers, also in FP8");
  ProductArguments& a = cmd.runs(run_products);
  a.config.add_to(cmd);
  cmd.add_number("--tokens", a.tokens, "Rows of each product; 0: the tokens of a micro-batch", 0, 1 << 24);
  cmd.add_number("--seconds", a.seconds, "Seconds per measurement", 1e-6, 3600).show_default();
  cmd.add_number("--rounds", a.rounds, "Rounds over all kernels; reports medians over the rounds", 1, 1000)
      .show_default();
  cmd.footer("Example: ringmaster bench products bench/shapes/1b.yaml --tokens 4096");
}

}  // namespace ring
