#include <cstdio>
#include <iostream>
#include <optional>

#include "bench/step.h"
#include "cli/bench.h"
#include "cli/command.h"
#include "cli/print.h"
#include "cli/rates.h"
#include "engine/activation_fit.h"
#include "engine/devices.h"
#include "engine/planner.h"
#include "evaluate/session.h"
#include "inspect/part_times.h"
#include "inspect/profiler.h"
#include "kernels/observers.h"
#include "model/flops.h"

namespace ring {
namespace {

// Dense bf16 FLOP/s of an H100 or H200, from NVIDIA's data sheet; MFU is usually given relative to this value.
constexpr double kPeakTflops = 989;
constexpr double kGiB = 1024.0 * 1024 * 1024;

struct StepArguments {
  BenchConfig config;
  std::string csv, who = "ringmaster", trace = "profile.json", rates;
  int steps = 20, warmup = 5, profile = 0;
  double peak = 0;  // in TFLOP/s; 0 means kPeakTflops on a GPU
  bool no_ceilings = false, nvtx = false;
};

// Returns e.g. "bf16 activations; kept in memory: parameters bf16, moments bf16, gradients bf16".
std::string types_text(const Config& c, const ExecContext& ctx) {
  const DType activations = activation_type(ctx.precision);
  const OptimizerConfig& o = c.optimizer;
  std::string text = str(activations, " activations", ctx.precision == Precision::tf32 ? " (tf32 products)" : "",
                         "; kept in memory: parameters ", o.master);
  if (o.master != activations) text += str(" with a copy in ", activations);
  return text + str(", moments ", to_string(o.moments), ", gradients ", o.gradients);
}

// Returns " MFU ..", or "" if the peak is unknown: data sheets of CPUs do not state it.
std::string mfu_text(const StepArguments& a, const StepBenchmark& bench, double flops) {
  const bool gpu = bench.exec().stream.device().backend == Backend::cuda;
  const double peak = a.peak > 0 ? a.peak : gpu ? kPeakTflops : 0;
  if (!(peak > 0)) return "";
  char text[64];
  std::snprintf(text, sizeof text, ", MFU %.3g %% of %.0f TFLOP/s", 100 * flops / (1e12 * peak), peak);
  return text;
}

void print(const StepArguments& a, StepBenchmark& bench, const StepTimes& t, const Ceilings& ceilings) {
  const Config& c = bench.config();
  const int world = bench.mesh().world();
  const double rate = bench.tokens_per_step() / t.median(), flops = rate * flops_per_token(c.model) / world;
  print_format("%s: %s; %s, %s\n", a.config.name().c_str(), types_text(c, bench.exec()).c_str(),
               c.run.deterministic ? "deterministic" : "not deterministic",
               str(bench.trainer().memory().text(),
                   c.train.mlp_chunk ? str(", MLPs of ", c.train.mlp_chunk, " tokens at a time") : "")
                   .c_str());
  print_format("step %.2f ms, %.0f tokens/s, ", 1e3 * t.median(), rate);
  if (world > 1) print_format("on each of %d processes %.0f tokens/s, ", world, rate / world);
  print_format("%.4g TFLOP/s%s", flops / 1e12, mfu_text(a, bench, flops).c_str());
  if (ceilings.flops_per_second > 0)
    print_format(", %.1f %% of the sustained product (%.4g TFLOP/s; copy %.3g TB/s)",
                 100 * flops / ceilings.flops_per_second, ceilings.flops_per_second / 1e12,
                 ceilings.bytes_per_second / 1e12);
  if (const HostOffload* offload = bench.trainer().offload())
    print_format("\nactivations: %.2f GiB offloaded to the host per micro-batch, %.2f GiB did not fit there",
                 static_cast<double>(offload->bytes().moved) / kGiB,
                 static_cast<double>(offload->bytes().stayed) / kGiB);
  print_format(
      "\nFLOPs per token: 6 x matrix weights (head included, embedding not) + 12 x heads x head_dim x pairs that "
      "attention keeps per token, layer by layer\n");
  print_format("process start to end of first step %.2f s, peak memory %.2f GiB in use, %.2f GiB reserved, loss %.4f\n",
               t.first_seconds, static_cast<double>(t.peak_bytes) / kGiB, static_cast<double>(t.reserved_bytes) / kGiB,
               t.loss);
}

// Prints what `ringmaster plan` predicts for these steps.
void print_prediction(const DeviceRates& rates, StepBenchmark& bench, const StepTimes& t) {
  const ActivationFit& fit = bench.trainer().memory().fit;
  const PlannedStep p = predict_step({bench.config(), bench.mesh().world(), fit.budget, rates}, fit);
  print_format(
      "predicted with rates of %s: step %.2f ms, %.3f of the measured time (share of waiting for messages or copies: "
      "%.2f); peak %.2f GiB, %.3f of the memory in use\n",
      rates.device.c_str(), 1e3 * p.seconds(), p.seconds() / t.median(), p.exposed_seconds / p.seconds(),
      static_cast<double>(p.peak) / kGiB, static_cast<double>(p.peak) / static_cast<double>(t.peak_bytes));
}

constexpr const char* kStepColumns = "who,shape,step_ms,tokens_per_second,first_seconds,peak_gib,loss";

void write(CsvFile& csv, const StepArguments& a, const StepBenchmark& bench, const StepTimes& t) {
  csv.add(str(a.who, ',', a.config.name(), ',', 1e3 * t.median(), ',', bench.tokens_per_step() / t.median(), ',',
              t.first_seconds, ',', static_cast<double>(t.peak_bytes) / kGiB, ',', t.loss));
}

void run_step(const StepArguments& a, const Facts& given) {
  const std::shared_ptr<KernelObserver> ranges = a.nvtx ? make_range_observer() : nullptr;
  const Config config = a.config.load();
  std::optional<DeviceRates> rates;
  if (!a.rates.empty()) rates = rates_of_option(a.rates, config);
  StepBenchmark bench(config, join_mesh(config, given));
  const bool leader = bench.mesh().rank() == 0;
  CsvFile csv(leader ? a.csv : "", kStepColumns);
  bench.trainer().observe(ranges);
  std::unique_ptr<Profiler> profiler;
  if (a.profile > 0) profiler = std::make_unique<Profiler>(a.profile, ranges);
  const StepTimes t = time_steps(bench, a.warmup, a.steps, profiler.get());
  bench.mesh().host().barrier().synchronize();  // allowed host wait: shutdown
  if (!leader) return;
  const Ceilings ceilings = a.no_ceilings ? Ceilings{} : try_measure_ceilings(bench.exec());
  print(a, bench, t, ceilings);
  if (rates) print_prediction(*rates, bench, t);
  write(csv, a, bench, t);
  if (!profiler) return;
  const Profile profile = profiler->read_profile();
  write_trace(profile, a.trace);
  std::cout << "\n" << profile_table(profile, ceilings) << "\n";
  const DeviceRates used = rates ? *rates : rates_named("", bench.config());
  const ActivationPlan& plan = bench.trainer().memory().fit.plan;
  std::cout << "\n" << part_times_table(part_times(profile, plan, used, bench.exec().precision), used);
  std::cout << "\ntrace: " << a.trace << "\n";
}

}  // namespace

void add_bench_step(Command bench) {
  const Command cmd = bench.add_subcommand("step", "Measure whole training steps on random tokens");
  auto a = std::make_shared<StepArguments>();
  a->config.add_to(cmd);
  cmd.add_number("--steps", a->steps, "Steps to time", 1, 1'000'000).show_default();
  cmd.add_number("--warmup", a->warmup, "Steps before the timed ones", 0, 1'000'000).show_default();
  cmd.add_number("--peak-tflops", a->peak, "Peak TFLOP/s of one device, for MFU; 0: 989 on a GPU, no MFU on a CPU", 0,
                 1e9);
  cmd.add_option("--csv", a->csv, "Append a line to this file");
  cmd.add_option("--who", a->who, "Text in the first column of --csv").show_default();
  cmd.add_option("--rates", a->rates, str("Also print the prediction of `plan`. ", kRatesText));
  cmd.add_flag("--no-ceilings", a->no_ceilings, "Do not measure the device's sustained rates");
  cmd.add_number("--profile", a->profile, "Afterwards profile this many more steps, kernel by kernel", 1, 100'000);
  cmd.add_option("--trace", a->trace, "File for the profile's trace").show_default();
  cmd.add_flag("--nvtx", a->nvtx, "Emit ranges for Nsight Systems, which slow the steps down");
  cmd.footer("Example: ringmaster bench step bench/shapes/gpt2.yaml run.deterministic=false");
  cmd.set_callback([a, cmd] {
    run_step(*a, facts_of_options(cmd, {"--peak-tflops", "--csv", "--who", "--no-ceilings", "--trace", "--nvtx"}));
  });
}

}  // namespace ring
