#include <cstdio>

#include "bench/attention.h"
#include "cli/bench.h"
#include "cli/command.h"
#include "cli/device_option.h"
#include "cli/pattern_options.h"
#include "cli/print.h"
#include "core/cpu/thread_pool.h"
#include "engine/devices.h"
#include "evaluate/session.h"
#include "kernels/tuning.h"

namespace ring {
namespace {

struct AttentionArguments {
  std::int64_t heads = 16, kv_heads = 0, tokens = 0, threads = 0;
  std::vector<std::int64_t> head_dims, lengths;
  bool causal = false, full = false, csv = false;
  std::string type;
  double seconds = 0.2, rest = 0, max_seconds = 2, dropout = 0;
  DeviceChoice device = DeviceChoice::automatic;
  std::vector<std::string> kinds = {"dense"}, candidates;
  PatternOptions pattern;
  int rounds = 1;
};

// Returns the grid; default sizes are smaller on a CPU.
AttentionGrid grid_of(const AttentionArguments& a, Backend backend) {
  const bool cpu = backend == Backend::cpu;
  AttentionGrid g;
  g.heads = a.heads;
  g.kv_heads = a.kv_heads ? a.kv_heads : a.heads;
  g.tokens = a.tokens ? a.tokens : cpu ? 1024 : 16384;
  g.head_dims = !a.head_dims.empty() ? a.head_dims
                : cpu                ? std::vector<std::int64_t>{64}
                                     : std::vector<std::int64_t>{64, 128};
  g.lengths = a.lengths;
  const std::int64_t longest = cpu ? 1024 : 131072;
  for (std::int64_t length = cpu ? 256 : 1024; a.lengths.empty() && length <= longest; length *= 2)
    g.lengths.push_back(length);
  if (a.causal || !a.full) g.causal.push_back(true);
  if (a.full || !a.causal) g.causal.push_back(false);
  g.patterns.clear();
  for (const std::string& kind : a.kinds) g.patterns.push_back({kind, a.pattern.pattern_of_kind(kind)});
  g.candidates = a.candidates;
  g.dropout = a.dropout;
  g.rounds = a.rounds;
  g.seconds = a.seconds;
  g.rest = a.rest;
  g.max_seconds = a.max_seconds;
  return g;
}

const char* name_of(AttentionPass pass) {
  switch (pass) {
    case AttentionPass::select: return "select";
    case AttentionPass::forward: return "forward";
    case AttentionPass::backward: break;
  }
  return "backward";
}

std::string text_of(const char* format, double value) {
  char text[32];
  std::snprintf(text, sizeof text, format, value);
  return text;
}

ExecContext context_of(const AttentionArguments& a) {
  const Backend backend = backend_of(a.device);
  const bool cpu = backend == Backend::cpu;
  if (cpu && !a.type.empty() && a.type != "f32")
    fail("--dtype: expected f32 because the device is a CPU, got ", a.type);
  ExecContext ctx{Stream::create({backend, 0}, static_cast<int>(a.threads ? a.threads : default_threads()))};
  ctx.precision = cpu || a.type == "f32" ? Precision::fp32 : Precision::bf16;
  return ctx;
}

void print_head(const AttentionArguments& a, const AttentionGrid& g, const ExecContext& ctx) {
  if (a.csv) {
    print_format(
        "pass,candidate,head_dim,causal,length,sequences,deterministic,ms,tflops,kind,kept,of_dense,extra_mb,lists_ms,"
        "spread\n");
    return;
  }
  print_format(
      "%s, %lld query heads, %lld KV heads; FLOPs of kept pairs: 4 x heads x head_dim per pair forward, 10 "
      "backward\nkept: share of dense attention's pairs; of dense: time / time of ringmaster's fastest dense kernel; "
      "extra MB: memory in addition to the operands; lists ms: time to build the lists of a new block pattern; pass "
      "select: selection of blocks by content, before the other passes\n\n",
      std::string(to_string(activation_type(ctx.precision))).c_str(), static_cast<long long>(g.heads),
      static_cast<long long>(g.kv_heads));
  print_format("%-9s %-10s %-12s %5s %-6s %8s %9s %6s %10s %9s %7s %8s %9s %8s %7s\n", "pass", "candidate", "kind",
               "dim", "mask", "length", "sequences", "determ", "ms", "TFLOP/s", "kept", "of dense", "extra MB",
               "lists ms", "spread");
}

void print_csv(const AttentionTiming& t) {
  if (t.seconds == 0) return;
  print_format("%s,%s,%lld,%d,%lld,%lld,%d,%.6g,%.6g,%s,%.5f,%.4f,%.2f,%.4f,%.3f\n", name_of(t.pass),
               t.candidate.c_str(), static_cast<long long>(t.head_dim), t.causal, static_cast<long long>(t.length),
               static_cast<long long>(t.sequences), t.deterministic, 1e3 * t.seconds, 1e-12 * t.flops / t.seconds,
               t.kind.c_str(), t.kept, t.of_dense, 1e-6 * static_cast<double>(t.extra_bytes), 1e3 * t.lists_seconds,
               t.spread);
}

void print(const AttentionTiming& t) {
  print_format("%-9s %-10s %-12s %5lld %-6s %8lld %9lld %6s ", name_of(t.pass), t.candidate.c_str(), t.kind.c_str(),
               static_cast<long long>(t.head_dim), t.causal ? "causal" : "full", static_cast<long long>(t.length),
               static_cast<long long>(t.sequences),
               t.pass != AttentionPass::backward ? ""
               : t.deterministic                 ? "yes"
                                                 : "no");
  if (t.seconds == 0) {
    print_format("left out: about %.1f s per call\n", t.expected);
    return;
  }
  const auto known = [](double value, const char* format) { return value > 0 ? text_of(format, value) : ""; };
  print_format("%10.3f %9s %7.4f %8s %9.1f %8s %6.1f%%\n", 1e3 * t.seconds,
               known(1e-12 * t.flops / t.seconds, "%.2f").c_str(), t.kept, known(t.of_dense, "%.3f").c_str(),
               1e-6 * static_cast<double>(t.extra_bytes), known(1e3 * t.lists_seconds, "%.3f").c_str(), 100 * t.spread);
}

void run_attention(const AttentionArguments& a) {
  const ExecContext ctx = context_of(a);
  const AttentionGrid grid = grid_of(a, ctx.stream.device().backend);
  check_grid(grid);
  print_head(a, grid, ctx);
  time_attention(grid, ctx, [&](const AttentionTiming& t) {
    a.csv ? print_csv(t) : print(t);
    std::fflush(stdout);
  });
}

}  // namespace

void add_bench_attention(Command bench) {
  const Command cmd =
      bench.add_subcommand("attention", "Measure every attention kernel of this build, forward and backward");
  AttentionArguments& a = cmd.runs(run_attention);
  cmd.add_number("--heads", a.heads, "Query heads", 1, kMaxHeads).show_default();
  cmd.add_number("--kv-heads", a.kv_heads, "KV heads; 0: same as --heads", 0, kMaxHeads);
  cmd.add_number("--head-dim", a.head_dims, "Head dimensions, separated by commas", 1, kMaxHeadDim);
  cmd.add_number("--length", a.lengths, "Tokens per sequence, separated by commas", 1, kMaxLength);
  cmd.add_number("--tokens", a.tokens, "Tokens per batch, filled with whole sequences", 1, kMaxLength);
  cmd.add_flag("--causal", a.causal, "Measure only causal attention");
  cmd.add_flag("--full", a.full, "Measure only full attention");
  cmd.add_option("--dtype", a.type, "Data type: bf16 or f32").one_of({"bf16", "f32"});
  cmd.add_number("--seconds", a.seconds, "Seconds per measurement", 1e-6, 3600).show_default();
  cmd.add_number("--rest", a.rest, "Idle seconds before each measurement", 0, 3600).show_default();
  cmd.add_number("--max-seconds", a.max_seconds, "Leave out kernels that take longer than this per call", 1e-12, 1e6)
      .show_default();
  cmd.add_number("--threads", a.threads, "CPU threads; 0: all cores", 0, kMaxThreads);
  add_device(cmd, a.device);
  cmd.add_option("--kind", a.kinds, "Kinds of attention, separated by commas")
      .delimiter(',')
      .one_of(attention_kind_names())
      .show_default();
  a.pattern.add_to(cmd);
  a.pattern.add_content_to(cmd);
  cmd.add_number("--dropout", a.dropout, "Dropout rate of attention weights; kernels without dropout are left out", 0,
                 0.95);
  cmd.add_option("--candidate", a.candidates, "Measure only these kernels, separated by commas").delimiter(',');
  cmd.add_number("--rounds", a.rounds, "Rounds over all kernels of a shape; reports medians over the rounds", 1,
                 1'000'000)
      .show_default();
  cmd.add_flag("--csv", a.csv, "Print comma-separated values");
  cmd.footer(
      "Examples: ringmaster bench attention --head-dim 128 --causal --length 4096,32768\n"
      "          ringmaster bench attention --causal --length 32768 --tokens 32768 --kind dense,window --rounds 3\n"
      "          ringmaster bench attention --causal --length 32768 --tokens 32768 --kind block_sparse --keep 26");
}

}  // namespace ring
