#include <CLI/CLI.hpp>
#include <cstdio>

#include "core/cpu/thread_pool.h"
#include "kernels/tuning.h"
#include "trainer/benchmark_context.h"
#include "trainer/commands/bench.h"
#include "trainer/commands/pattern_options.h"
#include "trainer/session.h"

namespace ring {
namespace {

struct Arguments {
  ContextGrid grid;
  std::string kind = "dense", device = "auto", layout = "auto";
  std::vector<std::string> schedules = {"ring", "gather", "all_to_all"};
  PatternOptions pattern;
  std::int64_t kv_heads = 0, threads = 0;
  bool deterministic = false, choices = false;
};

constexpr std::pair<const char*, ContextSchedule> kSchedules[] = {
    {"ring", ContextSchedule::ring}, {"gather", ContextSchedule::gather}, {"all_to_all", ContextSchedule::all_to_all}};

ContextGrid grid_of(const Arguments& a) {
  ContextGrid g = a.grid;
  g.kv_heads = a.kv_heads ? a.kv_heads : g.heads;
  g.pattern = a.pattern.of(a.kind);
  for (const std::string& name : a.schedules)
    for (const auto& [known, schedule] : kSchedules)
      if (name == known) g.schedules.push_back(schedule);
  g.parallel.cp_layout = a.layout == "zigzag"       ? ContextLayoutChoice::zigzag
                         : a.layout == "contiguous" ? ContextLayoutChoice::contiguous
                                                    : ContextLayoutChoice::automatic;
  return g;
}

void print(const ContextTiming& t) {
  const double forward = t.forward_flops / t.forward_seconds, both = t.both_flops / t.both_seconds;
  std::printf("%9lld %-11s %9.3f %7.1f %6.3f %9.3f %7.1f %6.3f ", static_cast<long long>(t.length), t.schedule.c_str(),
              1e3 * t.forward_seconds, 1e-12 * forward, forward / t.forward_alone, 1e3 * t.both_seconds, 1e-12 * both,
              both / t.both_alone);
  if (t.transfer_seconds > 0)
    std::printf("%9.3f %9.3f %6.1f%% ", 1e3 * t.computing_seconds, 1e3 * t.transfer_seconds, 100 * t.hidden());
  else
    std::printf("%9s %9s %7s ", "", "", "");
  std::printf("%9.1f %9.1f\n", 1e-6 * static_cast<double>(t.extra_bytes), 1e-6 * static_cast<double>(t.sent_bytes));
  std::fflush(stdout);
}

void run(const Arguments& a) {
  const ContextGrid grid = grid_of(a);
  Config config;
  config.run.device = parse_device(a.device);
  config.run.threads = a.threads ? a.threads : default_threads();
  const Environment environment = current_environment();
  const WorkerEnvironment env = parse_environment(environment);
  config.parallel.cp = env.world;
  const std::unique_ptr<Mesh> mesh = join_mesh(config);
  if (mesh->world() == 1) fail("bench context compares several processes: ringmaster launch -n 4 -- bench context");
  const Backend backend = mesh->device().backend;
  Context ctx{Stream::create(mesh->device(), static_cast<int>(config.run.threads))};
  ctx.precision = backend == Backend::cpu ? Precision::fp32 : Precision::bf16;
  ctx.deterministic = a.deterministic;
  if (backend == Backend::cuda) ctx.tuning = std::make_shared<Tuning>("");
  const bool leader = mesh->rank() == 0;
  if (leader)
    std::printf(
        "%d ranks, %s, %lld heads, %lld KV heads of %lld, %s; times of the slowest rank; alone: of the rate of one "
        "device "
        "with the whole sequence (up to %lld tokens)\n%9s %-11s %9s %7s %6s %9s %7s %6s %9s %9s %7s %9s %9s\n",
        mesh->world(), a.kind.c_str(), static_cast<long long>(grid.heads), static_cast<long long>(grid.kv_heads),
        static_cast<long long>(grid.head_dim), a.deterministic ? "deterministic" : "not deterministic",
        static_cast<long long>(grid.longest_alone), "tokens", "schedule", "fwd ms", "TFLOP/s", "alone", "both ms",
        "TFLOP/s", "alone", "compute", "transfer", "hidden", "extra MB", "sent MB");
  time_context(grid, *mesh, ctx, [&](const ContextTiming& t) {
    if (leader) print(t);
  });
  if (leader && a.choices && ctx.tuning) std::printf("\n%s", ctx.tuning->text().c_str());
}

}  // namespace

void add_bench_context(CLI::App& bench) {
  CLI::App* cmd =
      bench.add_subcommand("context", "Attention over one sequence on several processes: ring, gather, all-to-all");
  auto a = std::make_shared<Arguments>();
  a->grid.lengths = {65536, 131072, 262144};
  cmd->add_option("--length", a->grid.lengths, "Tokens of the whole sequence, with commas")->delimiter(',');
  cmd->add_option("--heads", a->grid.heads, "Query heads")->capture_default_str();
  cmd->add_option("--kv-heads", a->kv_heads, "KV heads; 0: as many as heads")->check(CLI::NonNegativeNumber);
  cmd->add_option("--head-dim", a->grid.head_dim, "Width of a head")->capture_default_str();
  cmd->add_option("--schedule", a->schedules, "ring, gather, all_to_all, with commas")
      ->delimiter(',')
      ->check(CLI::IsMember({"ring", "gather", "all_to_all"}));
  cmd->add_option("--layout", a->layout, "auto, zigzag or contiguous")
      ->check(CLI::IsMember({"auto", "zigzag", "contiguous"}));
  cmd->add_option("--prefetch", a->grid.parallel.cp_prefetch, "Of the ring: parts ahead")->check(CLI::Range(1, 64));
  cmd->add_option("--kind", a->kind, "Of attention")->check(CLI::IsMember(attention_kinds()))->capture_default_str();
  a->pattern.add_to(*cmd);
  cmd->add_option("--alone-up-to", a->grid.longest_alone, "Longest sequence for one device alone")
      ->capture_default_str();
  cmd->add_option("--seconds", a->grid.seconds, "Time of each measurement")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  cmd->add_option("--device", a->device, "auto, cpu or cuda")->check(CLI::IsMember({"auto", "cpu", "cuda"}));
  cmd->add_option("--threads", a->threads, "Of each process on a CPU; 0: its share of the cores")
      ->check(CLI::NonNegativeNumber);
  cmd->add_flag("--deterministic", a->deterministic, "Only kernels that give the same bits from run to run");
  cmd->add_flag("--choices", a->choices, "Then print which kernels were the fastest");
  cmd->footer("Example: ringmaster launch --nproc-per-node 4 -- bench context --length 65536,131072 --schedule ring");
  cmd->callback([a] { run(*a); });
}

}  // namespace ring
