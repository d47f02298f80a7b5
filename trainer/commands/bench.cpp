#include <CLI/CLI.hpp>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iostream>

#include "core/fields.h"
#include "trainer/benchmark.h"
#include "trainer/commands/commands.h"

namespace ring {
namespace {

// Dense bf16 products of an H100 or H200, by NVIDIA's data sheet: what MFU figures are usually quoted against.
constexpr double kPeakFlops = 989e12;

struct StepArguments {
  std::string config, csv;
  std::vector<std::string> overrides;
  int steps = 20, warmup = 5;
  double peak = kPeakFlops / 1e12;
  bool no_ceilings = false;
};

struct StepResult {
  std::string name;
  double step_ms, tokens_per_second, tflops, mfu, of_product, first_seconds, peak_gib, reserved_gib, loss;
};

void print(const StepResult& r, const Config& c, const Ceilings& ceilings, double peak) {
  std::printf("%s: %s parameters kept as %s, moments %s, gradients %s; precision %s, %s, recompute %s\n",
              r.name.c_str(), "all", std::string(to_string(c.optimizer.master)).c_str(),
              std::string(to_string(c.optimizer.moments)).c_str(),
              std::string(to_string(c.optimizer.gradients)).c_str(),
              c.train.precision == PrecisionChoice::bf16 ? "bf16" : "fp32 or tf32",
              c.run.deterministic ? "deterministic" : "not deterministic",
              c.train.recompute == Recompute::none ? "none" : "on");
  std::printf("step %.2f ms, %.0f tokens/s, %.1f TFLOP/s, MFU %.1f %% of %.0f TFLOP/s", r.step_ms, r.tokens_per_second,
              r.tflops, 100 * r.mfu, peak / 1e12);
  if (ceilings.flops_per_second > 0)
    std::printf(", %.1f %% of the sustained product (%.1f TFLOP/s; copy %.2f TB/s)", 100 * r.of_product,
                ceilings.flops_per_second / 1e12, ceilings.bytes_per_second / 1e12);
  std::printf(
      "\nFLOPs per token: 6 x matrix weights (head included, embedding not) + 6 x layers x heads x head_dim x context "
      "(causal attention counted half)\n");
  std::printf("process start to end of first step %.2f s, peak memory %.2f GiB in use, %.2f GiB reserved, loss %.4f\n",
              r.first_seconds, r.peak_gib, r.reserved_gib, r.loss);
}

void append_csv(const std::string& path, const StepResult& r) {
  const bool fresh = !std::filesystem::exists(path);
  std::ofstream out(path, std::ios::app);
  if (fresh) out << "who,shape,step_ms,tokens_per_second,first_seconds,peak_gib,loss\n";
  out << "ringmaster," << r.name << ',' << r.step_ms << ',' << r.tokens_per_second << ',' << r.first_seconds << ','
      << r.peak_gib << ',' << r.loss << '\n';
  if (!out.flush()) fail(path, ": cannot be written");
}

void run_step(const StepArguments& a) {
  Config config;
  load_config(config, a.config, a.overrides);
  StepBenchmark bench(config);
  const StepTimes t = time_steps(bench, a.warmup, a.steps);
  const Ceilings ceilings = a.no_ceilings ? Ceilings{} : measure_ceilings(bench.context());
  const Config& c = bench.config();
  const double tokens = static_cast<double>(c.train.batch_size * c.model.context), gib = 1024.0 * 1024 * 1024;
  StepResult r{.name = std::filesystem::path(a.config).stem().string(), .step_ms = 1e3 * t.median()};
  r.tokens_per_second = tokens / t.median();
  r.tflops = r.tokens_per_second * flops_per_token(c.model) / 1e12;
  r.mfu = r.tflops / a.peak;
  r.of_product = ceilings.flops_per_second > 0 ? r.tflops * 1e12 / ceilings.flops_per_second : 0;
  r.first_seconds = t.first_seconds;
  r.peak_gib = static_cast<double>(t.peak_bytes) / gib;
  r.reserved_gib = static_cast<double>(t.reserved_bytes) / gib;
  r.loss = t.loss;
  print(r, c, ceilings, a.peak * 1e12);
  if (!a.csv.empty()) append_csv(a.csv, r);
}

void add_step(CLI::App& bench) {
  CLI::App* cmd = bench.add_subcommand("step", "Whole training steps on random tokens");
  auto a = std::make_shared<StepArguments>();
  cmd->add_option("config", a->config, "Settings file; its corpus is not read")->required();
  cmd->add_option("overrides", a->overrides, "Settings to change, as section.key=value");
  cmd->add_option("--steps", a->steps, "Steps to time")->check(CLI::PositiveNumber)->capture_default_str();
  cmd->add_option("--warmup", a->warmup, "Steps before those")->check(CLI::NonNegativeNumber)->capture_default_str();
  cmd->add_option("--peak-tflops", a->peak, "What MFU refers to")->check(CLI::PositiveNumber)->capture_default_str();
  cmd->add_option("--csv", a->csv, "Append a line to this file");
  cmd->add_flag("--no-ceilings", a->no_ceilings, "Do not measure what the device sustains");
  cmd->footer("Example: ringmaster bench step bench/shapes/gpt2.yaml run.deterministic=false");
  cmd->callback([a] { run_step(*a); });
}

}  // namespace

void add_bench_commands(CLI::App& app) {
  CLI::App* bench = app.add_subcommand("bench", "Measure speed: training steps, single kernels, attention");
  bench->require_subcommand(1);
  add_step(*bench);
}

}  // namespace ring
