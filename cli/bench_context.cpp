#include <algorithm>
#include <cstdio>
#include <filesystem>

#include "bench/context.h"
#include "cli/bench.h"
#include "cli/command.h"
#include "cli/device_option.h"
#include "cli/pattern_options.h"
#include "cli/print.h"
#include "core/checked.h"
#include "core/cpu/thread_pool.h"
#include "engine/devices.h"
#include "evaluate/session.h"
#include "inspect/svg.h"
#include "inspect/timeline_picture.h"
#include "kernels/tuning.h"

namespace ring {
namespace {

struct ContextArguments {
  ContextGrid grid;
  std::string kind = "dense", layout = "auto", messages = "exact", csv, timeline;
  DeviceChoice device = DeviceChoice::automatic;
  std::vector<std::string> schedules;
  PatternOptions pattern;
  std::int64_t kv_heads = 0, threads = 0;
  bool deterministic = false, choices = false;
};

constexpr std::pair<const char*, ContextSchedule> kSchedules[] = {{"ring", ContextSchedule::ring},
                                                                  {"gather", ContextSchedule::gather},
                                                                  {"all_to_all", ContextSchedule::all_to_all},
                                                                  {"hybrid", ContextSchedule::hybrid}};

constexpr ContextMessages kMessages[] = {ContextMessages::exact, ContextMessages::bf16, ContextMessages::fp8};

constexpr std::int64_t kMinAlone = 4096;  // number of tokens at which one device nearly reaches its full rate

// Throws Error if the length for a single device is too short to show the device's rate with long sequences.
void check_alone(const ContextGrid& g) {
  const std::int64_t longest = *std::ranges::max_element(g.lengths), min = std::min(longest, kMinAlone);
  if (g.longest_alone > 0 && g.longest_alone < min)
    fail("--alone-up-to: expected at least ", min, ", or 0 to measure no reference, got ", g.longest_alone,
         ": a reference measured at so short a length is not valid for ", longest, " tokens");
}

// Returns the schedules that the KV heads and the messages allow.
std::vector<std::string> possible_schedules(const ContextArguments& a, int ranks, int ranks_on_node) {
  std::vector<std::string> all = {"ring", "gather"};
  if (a.kv_heads % ranks == 0 && a.messages == "exact") all.emplace_back("all_to_all");
  if (ranks_on_node > 1 && ranks_on_node < ranks && a.kv_heads % ranks_on_node == 0) all.emplace_back("hybrid");
  return all;
}

void check_heads(const ContextArguments& a, const char* schedule, int ranks, const char* which) {
  if (a.kv_heads % ranks == 0 || std::ranges::count(a.schedules, schedule) == 0) return;
  fail("--schedule: ", schedule, " requires KV heads divisible by the ", ranks, " ranks", which, ", got ", a.kv_heads,
       ". Omit ", schedule, ", or set --kv-heads to a multiple of ", ranks);
}

// Fills in options that were not given. Throws Error if the options do not suit this number of ranks.
void fill_in(ContextArguments& a, int ranks, const std::vector<int>& nodes, Backend backend) {
  if (a.kv_heads == 0) a.kv_heads = a.grid.heads;
  if (a.grid.heads % a.kv_heads)
    fail("--heads: expected a multiple of the ", a.kv_heads, " KV heads, got ", a.grid.heads);
  if (const std::int64_t here = a.grid.parallel.cp_ranks_per_node; here > 0 && ranks % here)
    fail("--ranks-per-node: expected a divisor of the ", ranks, " ranks, or 0, got ", here);
  if (a.grid.head_dim % 8) fail("--head-dim: expected a multiple of 8, got ", a.grid.head_dim);
  const int ranks_on_node = a.grid.parallel.ring_options(nodes).per_node;
  if (a.schedules.empty()) a.schedules = possible_schedules(a, ranks, ranks_on_node);
  if (a.messages != "exact" && std::ranges::count(a.schedules, "all_to_all"))
    fail("--schedule: all_to_all requires --messages exact, got ", a.messages, ". Omit all_to_all or --messages");
  check_heads(a, "all_to_all", ranks, "");
  check_heads(a, "hybrid", ranks_on_node, " of a node");
  if (a.grid.lengths.empty())
    a.grid.lengths =
        backend == Backend::cpu ? std::vector<std::int64_t>{4096} : std::vector<std::int64_t>{65536, 131072, 262144};
  check_alone(a.grid);
}

ContextGrid grid_of(const ContextArguments& a) {
  ContextGrid g = a.grid;
  g.kv_heads = a.kv_heads;
  g.pattern = a.pattern.pattern_of_kind(a.kind);
  for (const std::string& name : a.schedules)
    for (const auto& [known, schedule] : kSchedules)
      if (name == known) g.schedules.push_back(schedule);
  g.parallel.cp_layout = a.layout == "zigzag"       ? ContextLayoutChoice::zigzag
                         : a.layout == "contiguous" ? ContextLayoutChoice::contiguous
                         : a.layout == "balanced"   ? ContextLayoutChoice::balanced
                                                    : ContextLayoutChoice::automatic;
  for (const ContextMessages m : kMessages)
    if (a.messages == to_string(m)) g.parallel.cp_messages = m;
  return g;
}

std::string percent_cell(double share) {
  char text[32];
  std::snprintf(text, sizeof text, "%.1f%%", 100 * share);
  return text;
}
std::string milliseconds(double seconds) {
  char text[32];
  std::snprintf(text, sizeof text, "%.3f", 1e3 * seconds);
  return text;
}

// Formats a rate as a share of the rate `alone` of a single device; returns `otherwise` if `alone` was not measured.
std::string share(double flops, double alone, const char* otherwise) {
  if (!(alone > 0)) return otherwise;
  char text[32];
  std::snprintf(text, sizeof text, "%.3f", flops / alone);
  return text;
}

void print_head(const ContextArguments& a, const ContextGrid& grid, int ranks) {
  print_format(
      "%d ranks, %s, %lld heads, %lld KV heads of %lld, %s, %s messages; times of the slowest rank; alone: share of "
      "the rate of one "
      "device with the whole sequence (up to %lld tokens; 0: not measured)\n"
      "forward and backward (both), in ms: compute: without transfers; transfer: without computation; waited: "
      "messages in flight and no kernel running; hidden: 1 - waited / transfer; slowdown: both / compute - 1\n"
      "%9s %-11s %9s %7s %6s %9s %7s %6s %9s %9s %9s %7s %8s %9s %9s\n",
      ranks, a.kind.c_str(), static_cast<long long>(grid.heads), static_cast<long long>(grid.kv_heads),
      static_cast<long long>(grid.head_dim), a.deterministic ? "deterministic" : "not deterministic",
      a.messages.c_str(), static_cast<long long>(grid.longest_alone), "tokens", "schedule", "fwd ms", "TFLOP/s",
      "alone", "both ms", "TFLOP/s", "alone", "compute", "transfer", "waited", "hidden", "slowdown", "extra MB",
      "sent MB");
  std::fflush(stdout);
}

void print(const ContextTiming& t) {
  const double forward = t.forward_flops / t.forward_seconds, both = t.both_flops / t.both_seconds;
  print_format("%9lld %-11s %9.3f %7.4g %6s %9.3f %7.4g %6s %9.3f ", static_cast<long long>(t.length),
               t.schedule.c_str(), 1e3 * t.forward_seconds, 1e-12 * forward,
               share(forward, t.forward_alone, "-").c_str(), 1e3 * t.both_seconds, 1e-12 * both,
               share(both, t.both_alone, "-").c_str(), 1e3 * t.computing_seconds);
  const bool travels = t.transfer_seconds > 0;
  print_format("%9.3f %9.3f %7s %8s %9.1f %9.1f\n", 1e3 * t.transfer_seconds, 1e3 * t.waited_seconds,
               travels ? percent_cell(t.hidden_share()).c_str() : "-", percent_cell(t.slowdown()).c_str(),
               1e-6 * static_cast<double>(t.extra_bytes), 1e-6 * static_cast<double>(t.sent_bytes));
  std::fflush(stdout);
}

constexpr const char* kContextColumns =
    "ranks,device,deterministic,kind,heads,kv_heads,head_dim,layout,prefetch,message_bytes,ranks_per_node,messages,"
    "tokens,schedule,forward_ms,"
    "forward_tflops,forward_alone,both_ms,both_tflops,"
    "both_alone,compute_ms,transfer_ms,waited_ms,hidden,slowdown,extra_mb,sent_mb";

void write(CsvFile& csv, const ContextArguments& a, const ContextGrid& g, int ranks, const ExecContext& ctx,
           const ContextTiming& t) {
  const double forward = t.forward_flops / t.forward_seconds, both = t.both_flops / t.both_seconds;
  csv.add(str(ranks, ',', ctx.stream.impl().device_name(), ',', a.deterministic, ',', a.kind, ',', g.heads, ',',
              g.kv_heads, ',', g.head_dim, ',', a.layout, ',', g.parallel.cp_prefetch, ',', g.parallel.cp_message_bytes,
              ',', g.parallel.cp_ranks_per_node, ',', a.messages, ',', t.length, ',', t.schedule, ',',
              1e3 * t.forward_seconds, ',', 1e-12 * forward, ',', share(forward, t.forward_alone, ""), ',',
              1e3 * t.both_seconds, ',', 1e-12 * both, ',', share(both, t.both_alone, ""), ',',
              1e3 * t.computing_seconds, ',', 1e3 * t.transfer_seconds, ',', 1e3 * t.waited_seconds, ',',
              t.hidden_share(), ',', t.slowdown(), ',', 1e-6 * static_cast<double>(t.extra_bytes), ',',
              1e-6 * static_cast<double>(t.sent_bytes)));
}

// Returns the path, with length and schedule added to the file name if there are several lengths or schedules.
std::string timeline_path(const ContextArguments& a, std::int64_t length, const std::string& schedule) {
  std::filesystem::path path = a.timeline;
  std::string name = path.stem().string();
  if (a.grid.lengths.size() > 1) name += str('-', length);
  if (a.schedules.size() > 1) name += "-" + schedule;
  return path.replace_filename(name + path.extension().string()).string();
}

void check_paths(const ContextArguments& a) {
  if (a.timeline.empty()) return;
  for (const std::int64_t length : a.grid.lengths)
    for (const std::string& schedule : a.schedules) check_svg_path("--timeline", timeline_path(a, length, schedule));
}

void draw(const ContextArguments& a, const ContextGrid& g, int ranks, const ExecContext& ctx, const ContextTiming& t) {
  const std::string title = str("Attention over ", t.length, " tokens sharded over ", ranks, " ranks, schedule ",
                                t.schedule, ": one forward and one backward, measured on rank 0");
  const std::string of =
      str(ctx.stream.impl().device_name(), ", ", a.kind, ", ", g.heads, " heads, ", g.kv_heads, " KV heads of ",
          g.head_dim, "; slowest rank: ", milliseconds(t.both_seconds), " ms, ", milliseconds(t.computing_seconds),
          " ms without transfers; this measurement: ", milliseconds(t.timeline.seconds), " ms");
  std::string transfers = "no transfers";
  if (t.transfer_seconds > 0)
    transfers = str("transfers without computation ", milliseconds(t.transfer_seconds),
                    " ms; messages in flight and no kernel running for ", milliseconds(t.waited_seconds),
                    " ms: hidden ", percent_cell(t.hidden_share()));
  write_svg("--timeline", timeline_path(a, t.length, t.schedule), timeline_picture(t.timeline, title, {of, transfers}));
}

void run_context(ContextArguments a, const Facts& given) {
  Config config;
  config.run.device = a.device;
  config.run.threads = a.threads ? a.threads : default_threads();
  const Environment environment = current_environment();
  const WorkerEnvironment env = parse_environment(environment);
  if (env.world == 1)
    fail("bench context requires several processes. Start it with: ringmaster launch -n 4 -- bench context");
  const bool leader = env.rank == 0;
  CsvFile csv(leader ? a.csv : "", kContextColumns);
  config.parallel.cp = env.world;
  const std::unique_ptr<Mesh> mesh = join_mesh(config, given);
  const Backend backend = mesh->device().backend;
  fill_in(a, env.world, mesh->nodes_along("cp"), backend);
  if (leader) check_paths(a);
  const ContextGrid grid = grid_of(a);
  ExecContext ctx{Stream::create(mesh->device(), narrow<int>(config.run.threads))};
  ctx.precision = backend == Backend::cpu ? Precision::fp32 : Precision::bf16;
  ctx.deterministic = a.deterministic;
  if (backend == Backend::cuda) ctx.tuning = std::make_shared<Tuning>("");
  if (leader) print_head(a, grid, env.world);
  time_context(grid, *mesh, ctx, [&](const ContextTiming& t) {
    if (!leader) return;
    print(t);
    write(csv, a, grid, env.world, ctx, t);
    if (!a.timeline.empty()) draw(a, grid, env.world, ctx, t);
  });
  if (leader && a.choices && ctx.tuning) print_format("\n%s", ctx.tuning->text().c_str());
}

}  // namespace

void add_bench_context(Command bench) {
  const Command cmd = bench.add_subcommand(
      "context", "Measure attention over one sequence on several processes: ring, gather, all-to-all, hybrid");
  auto a = std::make_shared<ContextArguments>();
  cmd.add_number("--length", a->grid.lengths,
                 "Tokens of the whole sequence, with commas; default: 65536,131072,262144 on GPUs, 4096 on CPUs", 1,
                 kMaxLength);
  cmd.add_number("--heads", a->grid.heads, "Query heads", 1, kMaxHeads).show_default();
  cmd.add_number("--kv-heads", a->kv_heads, "KV heads; 0: same as --heads", 0, kMaxHeads);
  cmd.add_number("--head-dim", a->grid.head_dim, "Head dimension, a multiple of 8", 8, kMaxHeadDim).show_default();
  cmd.add_option("--schedule", a->schedules,
                 "ring, gather, all_to_all, hybrid, with commas; default: all that ranks, nodes and KV heads allow")
      .delimiter(',')
      .one_of({"ring", "gather", "all_to_all", "hybrid"});
  cmd.add_option("--layout", a->layout, "Order of rows: auto, zigzag, contiguous or balanced")
      .one_of({"auto", "zigzag", "contiguous", "balanced"});
  cmd.add_number("--prefetch", a->grid.parallel.cp_prefetch, "Parts that the ring fetches ahead", 0, 64);
  cmd.add_number("--message-bytes", a->grid.parallel.cp_message_bytes, "Largest message of the ring", 1 << 20,
                 std::int64_t{1} << 40);
  cmd.add_number("--ranks-per-node", a->grid.parallel.cp_ranks_per_node,
                 "Ring and hybrid: ranks on each node, as parallel.cp_ranks_per_node; all ranks: a ring of one level; "
                 "0: as placed",
                 0, kMaxProcesses)
      .show_default();
  cmd.add_option("--messages", a->messages, "Types of messages of ring and gather, as parallel.cp_messages")
      .one_of({"exact", "bf16", "fp8"})
      .show_default();
  cmd.add_option("--kind", a->kind, "Kind of attention").one_of(attention_kind_names()).show_default();
  a->pattern.add_to(cmd);
  cmd.add_number("--alone-up-to", a->grid.longest_alone, "Longest sequence measured on one device alone; 0: none", 0,
                 kMaxLength)
      .show_default();
  cmd.add_number("--seconds", a->grid.seconds, "Seconds per measurement", 1e-6, 3600).show_default();
  add_device(cmd, a->device);
  cmd.add_number("--threads", a->threads, "CPU threads of each process; 0: its share of the cores", 0, kMaxThreads);
  cmd.add_option("--timeline", a->timeline,
                 "Draw rank 0's kernels and messages as SVG; one file per call: FILE-LENGTH-SCHEDULE.svg")
      .type_name("FILE.svg");
  cmd.add_option("--csv", a->csv, "Append a line for each measurement to this file").type_name("FILE");
  cmd.add_flag("--deterministic", a->deterministic, "Use only kernels with bit-identical results from run to run");
  cmd.add_flag("--choices", a->choices, "Also print which kernels were the fastest");
  cmd.footer("Example: ringmaster launch --nproc-per-node 4 -- bench context --length 65536,131072 --schedule ring");
  cmd.set_callback([a, cmd] {
    run_context(*a, facts_of_options(cmd, {"--device", "--threads", "--timeline", "--csv", "--choices"}));
  });
}

}  // namespace ring
