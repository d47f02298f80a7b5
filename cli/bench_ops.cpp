#include <algorithm>
#include <cstdio>

#include "bench/ops.h"
#include "cli/bench.h"
#include "cli/command.h"
#include "cli/print.h"

namespace ring {
namespace {

struct OpArguments {
  BenchConfig config;
  std::string filter, csv_file;
  double seconds = 0.05;
  int steps = 5;
  bool csv = false;
};

void print_ceilings(const OpsReport& r) {
  print_format("ceilings of this run: copy %.4g GB/s, matrix product %.4g TFLOP/s\n", r.ceilings.bytes_per_second / 1e9,
               r.ceilings.flops_per_second / 1e12);
}

void print_ops(const OpArguments& a, const OpsReport& r) {
  if (a.csv) {
    print_format("op,candidate,shape,calls,us,gbytes_per_second,tflops,of_floor,share\n");
  } else {
    print_ceilings(r);
    print_format("\n%-22s %-14s %-34s %6s %10s %9s %9s %9s %7s\n", "op", "candidate", "shape", "calls", "us", "GB/s",
                 "TFLOP/s", "of floor", "share");
  }
  const char* format = a.csv ? "%s,%s,\"%s\",%d,%.3f,%.2f,%.3f,%.4f,%.5f\n"
                             : "%-22s %-14s %-34s %6d %10.2f %9.1f %9.2f %8.0f%% %6.1f%%\n";
  const double percent = a.csv ? 1 : 100;
  for (const OpTiming& o : r.ops) {
    if (o.seconds == 0) continue;
    print_format(format, o.slot.c_str(), o.candidate.c_str(), o.cost.shape.c_str(), o.calls, 1e6 * o.seconds,
                 1e-9 * o.cost.bytes / o.seconds, 1e-12 * o.cost.flops / o.seconds,
                 percent * r.ceilings.floor_seconds(o.cost) / o.seconds,
                 percent * o.calls * o.seconds / r.step_seconds);
  }
}

void print_floor(const OpsReport& r) {
  const StepFloor f = r.step_floor();
  double sum = 0;
  for (const OpTiming& o : r.ops) sum += o.calls * o.seconds;
  print_format("step %.2f ms; its kernels back to back %.2f ms\n", 1e3 * r.step_seconds, 1e3 * sum);
  print_format(
      "floor %.2f ms = matrix products %.2f + attention as measured %.2f + all other bytes, moved once at %.0f %% of "
      "copy speed, %.2f; the step takes %.3f times the floor\n",
      1e3 * f.seconds(), 1e3 * f.products, 1e3 * f.attention, 100 * kFusedShareOfCopy, 1e3 * f.rest,
      r.step_seconds / f.seconds());
}

void run_ops(const OpArguments& a) {
  StepBenchmark bench(a.config.load());
  const OpsReport r = time_ops(bench, a.seconds, a.steps, a.filter);
  if (std::none_of(r.ops.begin(), r.ops.end(), [](const OpTiming& o) { return o.seconds > 0; }))
    fail("--filter: no op of this step has '", a.filter, "' in its name or shape");
  print_ops(a, r);
  if (a.csv || !a.filter.empty()) return;
  print_format("\n");
  print_floor(r);
}

void run_floor(const OpArguments& a) {
  CsvFile csv(a.csv_file, "shape,floor_ms,products_ms,attention_ms,rest_ms,step_ms,copy_tbytes,product_tflops");
  StepBenchmark bench(a.config.load());
  const OpsReport r = time_ops(bench, a.seconds, a.steps);
  const StepFloor f = r.step_floor();
  print_ceilings(r);
  print_floor(r);
  csv.add(str(a.config.name(), ',', 1e3 * f.seconds(), ',', 1e3 * f.products, ',', 1e3 * f.attention, ',', 1e3 * f.rest,
              ',', 1e3 * r.step_seconds, ',', r.ceilings.bytes_per_second / 1e12, ',',
              r.ceilings.flops_per_second / 1e12));
}

void add_common(Command cmd, OpArguments& a) {
  a.config.add_to(cmd);
  cmd.add_number("--seconds", a.seconds, "Seconds to repeat each op", 1e-6, 3600).show_default();
  cmd.add_number("--steps", a.steps, "Whole steps to time first", 1, 1'000'000).show_default();
}

}  // namespace

void add_bench_ops(Command bench) {
  const Command ops =
      bench.add_subcommand("ops", "Measure each kernel of a training step, on the operands of the step");
  OpArguments& a = ops.runs(run_ops);
  add_common(ops, a);
  ops.add_option("--filter", a.filter, "Measure only ops with this text in their name or shape");
  ops.add_flag("--csv", a.csv, "Print comma-separated values");
  ops.footer("Example: ringmaster bench ops bench/shapes/gpt2.yaml --filter matmul");

  const Command floor = bench.add_subcommand(
      "floor", "Print the shortest possible time of a step with these matrix products and attention");
  OpArguments& b = floor.runs(run_floor);
  add_common(floor, b);
  floor.add_option("--csv", b.csv_file, "Append a line to this file");
}

}  // namespace ring
