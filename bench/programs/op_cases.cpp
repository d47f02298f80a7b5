// Times the op cases of the tests, forward and backward: median, GFLOP/s, GB/s, and the larger of the two fractions of
// the rates that this machine sustains in the same run (data in cache can exceed 100 % of the memory's rate).

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <iostream>

#include "bench/step.h"
#include "cli/command.h"
#include "core/cpu/thread_pool.h"
#include "tests/op_case.h"

namespace ring::test {
namespace {

struct Options {
  std::string filter;
  int threads = default_threads();
  double seconds = 0.2;
  bool csv = false, all = false;
};

using Clock = std::chrono::steady_clock;
double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

struct Timing {
  double median = 0, best = 0;  // best: the value that other work on the machine disturbed least
};

// Summarizes the times that `sample` returns, over at least 5 calls and `budget` seconds.
template <class Sample>
Timing measure(double budget, const Sample& sample) {
  sample();  // touches memory for the first time; initializes libraries
  std::vector<double> times;
  const Clock::time_point start = Clock::now();
  while (times.size() < 5 || (seconds_since(start) < budget && times.size() < 10000)) times.push_back(sample());
  std::sort(times.begin(), times.end());
  return {times[times.size() / 2], times.front()};
}

// One case on warm memory: tensors are created once, and all allocations come from the pool.
class Bench {
 public:
  Bench(const OpCase& c, const ExecContext& ctx) : case_(c), ctx_(ctx), inputs_(make_inputs(c, input_values(c), ctx)) {
    for (const Var& in : inputs_) constants_.push_back({in.value, nullptr});
  }

  double forward() {
    Run run{.ctx = ctx_};
    const Clock::time_point start = Clock::now();
    const std::vector<Var> out = case_.run(run, constants_);
    return seconds_since(start);
  }

  // Includes the forward of a loss head, which computes its gradients in the forward.
  double backward() {
    Tape tape;
    Run run{.ctx = ctx_, .tape = &tape};
    Clock::time_point start = Clock::now();
    std::vector<Var> out = case_.run(run, inputs_);
    SlotPtr root;
    for (std::size_t i = 0; i < out.size(); ++i) {
      if (!out[i].slot) continue;
      if (seeds_.size() <= i) seeds_.resize(i + 1);
      if (!seeds_[i].defined()) seeds_[i] = ctx_.zeros(out[i].value.shape());
      root = out[i].slot;
      root->grad = seeds_[i];
      root->written = true;
    }
    const Tensor seed = case_.root ? Tensor{} : root->grad;
    if (!case_.root) start = Clock::now();
    tape.backward(root, seed, ctx_);
    const double time = seconds_since(start);
    for (const Var& in : inputs_)
      if (in.slot) in.slot->grad = {}, in.slot->written = false;
    return time;
  }

 private:
  const OpCase& case_;
  ExecContext ctx_;
  std::vector<Var> inputs_, constants_;
  std::vector<Tensor> seeds_;
};

struct Row {
  std::string op, name;
  const char* pass;
  Timing time;
  double flops, bytes;
};

void print_header(const Options& o, const Ceilings& c) {
  if (o.csv) {
    std::printf("op,case,pass,median_us,best_us,gflops,gbytes_per_second,of_ceiling\n");
    return;
  }
  std::printf("%d threads; ceilings: %.1f GFLOP/s (matrix product 1024^3), %.1f GB/s (copy of 128 MiB)\n\n", o.threads,
              c.flops_per_second * 1e-9, c.bytes_per_second * 1e-9);
  std::printf("%-20s %-34s %-9s %11s %11s %10s %9s %9s\n", "op", "case", "pass", "median us", "best us", "GFLOP/s",
              "GB/s", "ceiling");
}

void print_row(const Options& o, const Ceilings& c, const Row& r) {
  const double gflops = r.flops * 1e-9 / r.time.median, gbytes = r.bytes * 1e-9 / r.time.median;
  const double fraction = std::max(gflops * 1e9 / c.flops_per_second, gbytes * 1e9 / c.bytes_per_second);
  const char* format =
      o.csv ? "%s,%s,%s,%.2f,%.2f,%.3f,%.3f,%.4f\n" : "%-20s %-34s %-9s %11.1f %11.1f %10.2f %9.2f %8.0f%%\n";
  std::printf(format, r.op.c_str(), r.name.c_str(), r.pass, r.time.median * 1e6, r.time.best * 1e6, gflops, gbytes,
              fraction * (o.csv ? 1 : 100));
  std::fflush(stdout);
}

bool wanted(const Options& o, const OpCase& c) {
  return (c.bench || o.all) && (c.op + "/" + c.name).find(o.filter) != std::string::npos;
}

int run_benchmarks(const Options& o) {
  const ExecContext ctx{Stream::cpu(o.threads)};
  const Ceilings ceilings = measure_ceilings(ctx, o.seconds);
  print_header(o, ceilings);
  int count = 0;
  for (const OpCase& c : all_cases()) {
    if (!wanted(o, c)) continue;
    Bench bench(c, ctx);
    const Timing forward = measure(o.seconds, [&] { return bench.forward(); });
    print_row(o, ceilings, {c.op, c.name, "forward", forward, c.flops, c.bytes});
    const Timing backward = measure(o.seconds, [&] { return bench.backward(); });
    const double flops = c.backward_flops > 0 ? c.backward_flops : c.flops;
    const double bytes = c.backward_bytes > 0 ? c.backward_bytes : c.bytes;
    print_row(o, ceilings, {c.op, c.name, c.root ? "both" : "backward", backward, flops, bytes});
    ++count;
  }
  if (count == 0) fail("no case matches '", o.filter, "'; --all includes the small ones");
  return 0;
}

}  // namespace
}  // namespace ring::test

int main(int argc, char** argv) try {
  ring::test::Options o;
  ring::Program program("bench_op_cases", "Times every differentiable op on the sizes that training uses");
  program.add_option("--filter", o.filter, "only cases whose op/name contains this");
  program.add_number("--threads", o.threads, "threads of the pool", 1, ring::kMaxThreads);
  program.add_number("--seconds", o.seconds, "time spent on each measurement", 1e-6, 3600);
  program.add_flag("--csv", o.csv, "comma-separated values");
  program.add_flag("--all", o.all, "also the small cases of the tests");
  program.parse({argv + 1, argv + argc});
  return ring::test::run_benchmarks(o);
} catch (const ring::HelpAsked& e) {
  std::cout << e.text;
} catch (const std::exception& e) {
  std::cerr << "bench_op_cases: " << e.what() << '\n';
  return 1;
}
