
#include <algorithm>
#include <cstdio>
#include <iostream>
#include <utility>

#include "cli/command.h"
#include "cli/commands.h"
#include "cli/live_line.h"
#include "cli/plan_tables.h"
#include "cli/print.h"
#include "cli/rates.h"
#include "cli/settings.h"
#include "core/checked.h"
#include "core/counted.h"
#include "core/exit_code.h"
#include "core/fields.h"
#include "core/host_memory.h"
#include "core/stop_signal.h"
#include "data/config.h"
#include "data/output_file.h"
#include "engine/attention_advice.h"
#include "engine/devices.h"
#include "engine/layout_choice.h"
#include "engine/layouts.h"
#include "engine/resolve.h"
#include "inspect/memory_picture.h"
#include "inspect/svg.h"
#include "kernels/gradient_codes.h"
#include "model/architectures.h"
#include "trainer/progress.h"

namespace ring {
namespace {

constexpr int kMaxPlannedRanks = 65536;
// On several nodes, a plan ends once this many layouts fit, or --rows layouts if that is more.
constexpr std::size_t kLayoutsOfNodes = 8;

struct PlanArguments {
  std::string file, rates = "auto", svg, node_link;
  std::vector<std::string> overrides;
  std::vector<int> gpus = {1}, nodes;
  int per_node = 8, islands = 1;
  std::vector<std::int64_t> contexts;
  std::uint64_t memory = 0, host = 0;
  int rows = 5;
  bool longest = false, advise = false, all_layouts = false, bytes_per_rank = false;
  std::vector<std::int64_t> ranks = {1, 8, 256, 262144};  // of cp, for --bytes-per-rank
  bool asks_for_gpus = false;                             // true if --gpus, --nodes or --memory is given

  // Returns the numbers of devices to plan.
  std::vector<WorldSize> worlds() const {
    std::vector<WorldSize> all;
    for (const int n : nodes.empty() ? gpus : nodes)
      all.push_back(nodes.empty() ? WorldSize(n, 0, islands) : WorldSize(n * per_node, per_node, islands));
    return all;
  }
  bool several_nodes() const { return !nodes.empty() && std::ranges::max(nodes) > 1; }
};

// Throws Error if the numbers of nodes and GPUs make no sense. gpus_given: true if the command line has --gpus.
void check_node_options(const PlanArguments& a, bool gpus_given, bool per_node_given) {
  if (a.bytes_per_rank && (gpus_given || !a.nodes.empty()))
    fail("plan: --bytes-per-rank counts for --ranks ranks of cp. Leave out ", gpus_given ? "--gpus" : "--nodes");
  if (!a.nodes.empty() && gpus_given)
    fail("plan: --gpus and --nodes exclude each other. Give --nodes N --gpus-per-node G, or only --gpus");
  if (a.nodes.empty() && ((per_node_given && !a.bytes_per_rank) || !a.node_link.empty()))
    fail("plan: ", per_node_given ? "--gpus-per-node" : "--node-link", " needs the number of nodes. Add --nodes N");
  for (const int n : a.nodes)
    if (std::int64_t{n} * a.per_node > kMaxPlannedRanks)
      fail("plan: --nodes ", n, " x --gpus-per-node ", a.per_node, " are ", std::int64_t{n} * a.per_node,
           " GPUs, but a plan has at most ", kMaxPlannedRanks, ". Give fewer nodes");
}

// Length of the run in steps and in tokens; 0 if the settings do not give it in that unit.
struct RunLength {
  std::int64_t steps = 0, tokens = 0;
};

// A GPU with its advertised memory size: an "80 GB" GPU has neither 80e9 bytes nor 80 GiB.
struct SoldGpu {
  const char* rates;
  std::uint64_t gigabytes;
  std::uint64_t bytes() const { return gigabytes * 1'000'000'000; }
};
constexpr SoldGpu kSoldGpus[] = {{"h100", 80}, {"h200", 141}};

// Returns the GPU with these rates and this memory; null if there is none.
const SoldGpu* sold_gpu(const std::string& rates, std::uint64_t memory) {
  const auto* const gpu =
      std::ranges::find_if(kSoldGpus, [&](const SoldGpu& g) { return g.rates == rates && g.bytes() == memory; });
  return gpu == std::end(kSoldGpus) ? nullptr : gpu;
}

// Returns true if shipped GPU rates are used because the command or the settings ask for GPUs although this machine has
// none.
bool takes_rates_of_gpu(const PlanArguments& a, const Config& c) {
  const bool asks = c.run.device == DeviceChoice::cuda || (a.asks_for_gpus && c.run.device != DeviceChoice::cpu);
  return asks && a.rates == "auto" && c.run.rates.empty() && !backend_available(Backend::cuda);
}

// Returns the shipped GPU with at least this memory, or the largest one.
std::string gpu_with(std::uint64_t memory) {
  const auto* const gpu = std::ranges::find_if(kSoldGpus, [=](const SoldGpu& g) { return g.bytes() >= memory; });
  return gpu == std::end(kSoldGpus) ? std::end(kSoldGpus)[-1].rates : gpu->rates;
}

std::size_t memory_of(const PlanArguments& a, const DeviceRates& rates) {
  if (sold_gpu(rates.device, a.memory)) return static_cast<std::size_t>(rates.memory_bytes);
  if (a.memory) return a.memory;
  if (rates.memory_bytes > 0) return static_cast<std::size_t>(rates.memory_bytes);
  const std::vector<MemoryBound> bounds = memory_bounds();
  return tightest_bound(bounds).total;
}

std::size_t budget_of(const PlanArguments& a, const Config& c, const DeviceRates& rates) {
  const std::size_t memory = memory_of(a, rates);
  const double asked = c.train.memory_budget;
  if (!(asked > 0)) return memory;
  return std::min(memory, static_cast<std::size_t>(asked <= 1 ? asked * static_cast<double>(memory) : asked));
}

std::int64_t vocabulary_of(const Config& c) {
  if (c.model.vocab_size) return c.model.vocab_size;
  try {
    return open_corpora(c.data).vocab_size;
  } catch (const Error& e) {
    fail("model.vocab_size: 0 reads the size from the corpus, but the corpus cannot be read (", e.what(),
         "). Give the size, such as ", "model.vocab_size=50304");
  }
}

// Returns the degrees that the search must keep: degrees given on the command line, and degrees that differ from the
// defaults.
FixedDegrees fixed_degrees(const PlanArguments& a, ParallelConfig c) {
  if (a.all_layouts) return {};
  const bool chooses = c.is_automatic() || !c.chosen.empty();  // then degrees at their defaults count as given, too
  const auto open_default = [&](const char* name, std::int64_t& degree, std::int64_t by_default) {
    const std::string begin = str("parallel.", name, '=');
    const auto names_it = [&](const std::string& o) { return o.starts_with(begin); };
    if (!chooses && degree == by_default && std::ranges::none_of(a.overrides, names_it)) degree = kAutoDegree;
  };
  const ParallelConfig open;
  open_default("cp", c.cp, open.cp);
  open_default("tp", c.tp, open.tp);
  open_default("zero", c.zero, open.zero);
  return given_degrees(c);
}

DeviceRates rates_of(const PlanArguments& a, const Config& c) {
  DeviceRates rates = rates_of_option(takes_rates_of_gpu(a, c) ? gpu_with(a.memory) : a.rates, c);
  if (!a.node_link.empty()) rates.node_link_bytes_per_second = parse_link_rate(a.node_link, "--node-link");
  if (a.several_nodes() && rates.node_link_bytes_per_second == 0)
    fail("plan: --nodes needs the rate of the link between nodes, which the rates of ", rates.device,
         " do not contain. Give --node-link, such as 400Gb/s, or --rates with a file that "
         "`ringmaster launch --nnodes 2 .. -- bench links` wrote");
  return rates;
}

PlanRequest question_of(const PlanArguments& a, Config c) {
  const DeviceRates rates = rates_of(a, c);
  const Backend backend = rates.device == "cpu" ? Backend::cpu : Backend::cuda;
  const ParallelConfig given = std::exchange(c.parallel, {});
  if (std::ranges::count(given.chosen, "offload") > 0) c.optimizer.offload = StateOffload::none;
  PlanRequest q{.budget = budget_of(a, c, rates), .rates = rates, .fixed = fixed_degrees(a, given)};
  q.config = resolve_config(c, vocabulary_of(c), 1, backend, false);
  q.config.parallel = without_auto(given);  // the search replaces the degrees that are not fixed
  std::int64_t& activations = q.config.train.activation_offload_bytes;
  if (a.host) activations = narrow<std::int64_t>(a.host);
  q.host = activations;
  if (a.several_nodes()) q.max_layouts = std::max(kLayoutsOfNodes, static_cast<std::size_t>(a.rows));
  return q;
}

const char* device_word(const PlanRequest& q) { return q.rates.device == "cpu" ? "process" : "GPU"; }

// Returns e.g. "16 GPUs" or "2 nodes of 8 GPUs".
std::string devices_text(const PlanRequest& q) {
  if (q.world.nodes() == 1) return counted(q.world, device_word(q));
  return str(counted(q.world.nodes(), "node"), " of ", counted(q.world.per_node, device_word(q)));
}

// Returns a callback that shows the planner's progress, e.g. "planning 8 GPUs: layout 9 of 37, best so far cp 4, tp 2,
// zero 3: 28.6k tokens/s".
PlanProgress progress_of(LiveLine& line, const PlanRequest& q, const char* what) {
  std::cout.flush();  // shows earlier output now, also in files and pipes: the search may take minutes
  const std::string devices = devices_text(q);
  return [&line, devices, what](std::size_t done, std::size_t all, const PlannedStep* best) {
    if (!line.is_due()) return;
    const std::string so_far =
        best ? str(", best so far ", best->layout, ": ", format_count(best->tokens_per_second), " tokens/s") : "";
    line.show(str("planning ", devices, ": ", what, ' ', done + 1, " of ", all, so_far));
  };
}

// Prints how long the whole run takes in this layout. Prints nothing if the settings give neither steps nor tokens.
void print_run_time(const RunLength& run, const PlannedStep& p) {
  const double seconds =
      run.tokens ? static_cast<double>(run.tokens) / p.tokens_per_second : static_cast<double>(run.steps) * p.seconds();
  if (!(seconds > 0)) return;
  const std::string length =
      run.tokens ? str(format_count(static_cast<double>(run.tokens)), " tokens") : counted(run.steps, "step");
  print_format("\nthe whole run of %s with the fastest layout: %s\n", length.c_str(), format_duration(seconds).c_str());
}

// Prints the best layouts for one number of devices, and returns the fastest; nullopt if none fits.
std::optional<PlannedStep> report_step(const PlanArguments& a, const PlanRequest& q, const RunLength& run) {
  print_format("\n%s of %s, %lld tokens of context, batches of %lld\n", devices_text(q).c_str(),
               bytes_text(q.budget).c_str(), static_cast<long long>(q.config.model.context),
               static_cast<long long>(q.config.train.batch_size));
  LiveLine line;
  const Layouts all = try_layouts(q, progress_of(line, q, "layout"));
  line.clear();
  if (all.tried < all.count)
    print_format("incomplete: interrupted after %zu of %zu layouts; other layouts may be faster\n", all.tried,
                 all.count);
  else if (all.fit.empty() && all.too_large.empty()) {
    if (a.worlds().size() == 1 && a.contexts.size() <= 1) fail(a.file, ": ", all.error);
    print_format("no layout: %s\n", all.error.c_str());
    return {};
  }
  print_layouts(all, static_cast<std::size_t>(a.rows));
  if (!all.fit.empty()) {
    print_run_time(run, all.fit.front());
    return all.fit.front();
  }
  if (all.tried < all.count) return {};
  const bool host = may_offload(q.config) && q.config.train.activation_offload_bytes == 0;
  print_format("use more devices, a shorter model.context or a smaller model%s\n",
               host ? ", or allow host memory for offloading with --host" : "");
  return {};
}

std::string flops_text(double flops) {
  char text[32];
  std::snprintf(text, sizeof text, "%.3g", flops / 1e12);
  return text;
}

// Prints the cost of each kind of attention at this context, and the settings for it.
void print_advice(const PlanRequest& q, const std::optional<PlannedStep>& layout) {
  print_format("\nKinds of attention at %lld tokens with %s:\n\n", static_cast<long long>(q.config.model.context),
               devices_text(q).c_str());
  LiveLine line;
  const std::vector<AttentionAdvice> all = advise_attention(q, layout, progress_of(line, q, "kind of attention"));
  line.clear();
  if (q.stopped()) throw PlanStopped();
  std::size_t largest = 0;
  for (const AttentionAdvice& a : all) largest = std::max(largest, a.step ? a.step->peak : 0);
  const MemoryUnit unit = unit_of(largest);
  print_format("%-13s %8s %10s %10s %9s %12s %9s\n", "kind", "pairs", "TFLOPs", "attention", "step s", "tokens/s",
               str("peak ", unit.name).c_str());
  for (const AttentionAdvice& a : all) {
    print_format("%-13s %7.2f%% %10s ", a.name.c_str(), 100 * a.pairs, flops_text(a.flops).c_str());
    if (a.step)
      print_format("%9.1f%% %9.4g %12.0f %9.2f", 100 * a.share, a.step->seconds(), a.step->tokens_per_second,
                   unit.of(a.step->peak));
    else
      print_format("%10s %9s %12s %9s", "", "does not", "fit", "");
    print_format("\n");
  }
  print_format("\nattention: share of the step's time. The kinds as settings:\n\n");
  for (const AttentionAdvice& a : all) print_format("    model: {attention: %s}\n", a.yaml.c_str());
  print_format(
      "\nThe effect of each kind on the loss must be measured: docs/attention.md says which to try first, and "
      "docs/measured/attention.md has measurements. Models with sinks, dilated or block-sparse attention cannot be "
      "exported.\n");
}

// Prints the rates that the plan uses, and what these rates do not cover.
void print_rates(const PlanArguments& a, const PlanRequest& q, bool gpu_by_default) {
  constexpr int kGpusOfAMachine = 8;
  const int max = std::ranges::max(a.worlds(), {}, &WorldSize::ranks);
  print_format("%s: memory of one device, predicted; rates of %s\n", a.file.c_str(), q.rates.device.c_str());
  if (q.fixed.any() && !a.bytes_per_rank)
    print_format("only layouts with %s are planned because the settings give these; --all-layouts plans all\n",
                 q.fixed.text().c_str());
  if (q.config.train.recompute != RecomputeChoice::automatic)
    print_format("all layouts are planned with train.recompute: %s because the settings give it; auto may be faster\n",
                 choice_text(q.config, "train.recompute").c_str());
  if (gpu_by_default)
    print_format(
        "this machine has no GPU, so the plan uses the shipped rates of %s; --rates selects others (h100, h200, cpu or "
        "a file of ringmaster bench calibrate)\n",
        q.rates.device.c_str());
  if (const SoldGpu* gpu = sold_gpu(q.rates.device, a.memory))
    print_format("of the %llu GB of an %s, a program can allocate %s\n",
                 static_cast<unsigned long long>(gpu->gigabytes), gpu->rates,
                 bytes_text(static_cast<std::size_t>(q.rates.memory_bytes)).c_str());
  if (max > 1 && q.rates.collective_bytes_per_second == 0)
    print_format(
        "the rates include no link between devices, so the plan counts no time for messages. Measure the link with: "
        "ringmaster launch -n 2 -- bench calibrate\n");
  else if (a.nodes.empty() && max > kGpusOfAMachine && q.rates.device != "cpu")
    print_format(
        "the plan assumes that all GPUs are in one machine. Links between machines are slower, so with more than "
        "%d GPUs the times are lower bounds. Give --nodes, --gpus-per-node and --node-link\n",
        kGpusOfAMachine);
  if (a.several_nodes())
    print_format("between nodes %.4g GB/s each way, which the %s of a node share\n",
                 q.rates.node_link_bytes_per_second / 1e9, counted(a.per_node, device_word(q)).c_str());
}

void print_longest(const PlanRequest& q) {
  LiveLine line;
  const LongestContext longest = longest_context(q, progress_of(line, q, "longest context, layout"));
  line.clear();
  print_format("\nlongest context with %s: %lld tokens\n", devices_text(q).c_str(),
               static_cast<long long>(longest.tokens));
  if (longest.tokens == 0) return;
  const Layouts layouts = try_layouts(longest.request, progress_of(line, q, "longest context"));
  line.clear();
  print_layouts(layouts, 1);
  if (!layouts.fit.empty()) print_settings(layouts.fit.front(), "layout");
}

void print_best(const PlanArguments& a, const PlanRequest& q, const PlannedStep& best) {
  print_legend(device_word(q));
  print_planned(best);
  if (!a.svg.empty()) write_svg("--svg", a.svg, memory_picture(best));
}

void print_bytes_per_rank(const PlanArguments& a, PlanRequest q, const std::vector<std::int64_t>& contexts) {
  q.world.per_node = a.per_node;
  for (const std::int64_t context : contexts) {
    q.config.model.context = context;
    print_sent(count_sent_bytes(q, a.ranks), a.per_node);
  }
}

// Returns the devices of one island, which is planned instead of the whole run.
PlanArguments devices_of_island(PlanArguments a, std::int64_t islands) {
  a.islands = static_cast<int>(islands);
  std::vector<int>& all = a.nodes.empty() ? a.gpus : a.nodes;
  for (int& n : all) {
    if (n % islands)
      fail("parallel.islands: ", islands, " does not divide ", a.nodes.empty() ? "--gpus " : "--nodes ", n,
           ". Give a multiple of parallel.islands");
    n /= static_cast<int>(islands);
  }
  return a;
}

// Replaces parallel.islands: 0 with the number of nodes in --nodes, which must then be a single number.
void resolve_islands_of(const PlanArguments& a, ParallelConfig& c) {
  if (c.islands == 0 && a.nodes.size() > 1) fail("parallel.islands: 0 is one island per node, which needs one --nodes");
  if (c.islands == 0) c.islands = a.nodes.empty() ? 1 : a.nodes.front();
}

// Returns the settings of one island alone, with its share of the batch.
Config settings_of_island(Config c) {
  const std::int64_t islands = std::exchange(c.parallel.islands, 1);
  const auto share = [&](std::int64_t sequences) {
    if (sequences % islands)
      fail("train.batch_size: ", sequences, " sequences cannot be divided among parallel.islands: ", islands);
    return sequences / islands;
  };
  c.train.batch_size = share(c.train.batch_size);
  for (TokenChange& change : c.train.batch_sizes)
    change.value = static_cast<double>(share(static_cast<std::int64_t>(change.value)));
  c.train.tokens /= islands;
  return c;
}

void print_islands(const ParallelConfig& p, const ModelConfig& model) {
  if (p.islands == 1) return;
  const auto parameters = static_cast<double>(make_model(model)->parameters().num_elements());
  const double scales = p.outer_bits < 32 ? 1.0 / static_cast<double>(kCodeBlock) : 0;
  const double bytes = parameters * (static_cast<double>(p.outer_bits) / 8 + scales);
  print_format(
      "the plan covers one of %s, with its share of the devices and of the batch. Every %s it sends %s to each other "
      "island (parallel.outer_bits: %lld). The memory includes the messages of all islands\n",
      counted(p.islands, "island").c_str(), counted(p.local_steps, "step").c_str(),
      bytes_text(static_cast<std::size_t>(bytes)).c_str(), static_cast<long long>(p.outer_bits));
}

void run_plan(const PlanArguments& given) {
  const StopSignal signal(/*announces=*/false);  // blocks signals, so it must be created before any thread
  if (!given.svg.empty()) check_svg_path("--svg", given.svg);
  check_output_is_no_input("--svg", given.svg, {given.file});
  Config of_run = load_settings(given.file, given.overrides);
  resolve_islands_of(given, of_run.parallel);
  const Config settings = settings_of_island(of_run);
  const PlanArguments a = devices_of_island(given, of_run.parallel.islands);
  PlanRequest q = question_of(a, settings);
  const RunLength length{settings.train.batch_sizes.empty() ? settings.train.steps : 0, settings.train.tokens};
  q.stopped = [&] { return signal.requested(); };
  print_rates(a, q, takes_rates_of_gpu(a, settings));
  print_islands(of_run.parallel, q.config.model);
  std::optional<PlannedStep> best;
  const std::vector<std::int64_t> contexts = a.contexts.empty() ? std::vector{q.config.model.context} : a.contexts;
  if (a.bytes_per_rank) return print_bytes_per_rank(a, q, contexts);
  for (const WorldSize& world : a.worlds())
    for (const std::int64_t context : contexts) {
      if (best && signal.requested()) break;
      q.world = world;
      q.config.model.context = context;
      const std::optional<PlannedStep> found = report_step(a, q, length);
      if (found) best = found;
      if (a.advise && !signal.requested()) print_advice(q, found);
    }
  for (const WorldSize& world : a.longest && !signal.requested() ? a.worlds() : std::vector<WorldSize>{}) {
    q.world = world;
    print_longest(q);
  }
  if (best) print_best(a, q, *best);
  if (!best || signal.requested()) throw ExitCode(kExitError);
}

// Throws ExitCode if no layout fits into memory or a signal ended the search.
void plan(const PlanArguments& a) try { run_plan(a); } catch (const PlanStopped&) {
  print_format("incomplete: interrupted\n");
  throw ExitCode(kExitError);
}

void add_bytes_options(const Command& cmd, PlanArguments& a) {
  cmd.add_flag("--bytes-per-rank", a.bytes_per_rank,
               "Print the bytes that a rank sends in a step as parallel.cp grows, instead of layouts; a rank keeps its "
               "tokens (model.context / parallel.cp)");
  cmd.add_number("--ranks", a.ranks, "Numbers of ranks of cp for --bytes-per-rank, with commas", 1, 1 << 20)
      .show_default()
      .takes_one_word()
      .needs("--bytes-per-rank");
}

}  // namespace

void add_plan_command(Command app) {
  const Command cmd =
      app.add_subcommand("plan", "Predict time and memory of a run and find the fastest layout, without training");
  auto a = std::make_shared<PlanArguments>();
  cmd.add_option("config", a->file, kSettingsText).required();
  cmd.add_option("overrides", a->overrides, "Settings to change, such as section.key=value");
  cmd.add_number("--gpus", a->gpus, "Numbers of GPUs, with commas (with --rates cpu: numbers of processes)", 1, 4096)
      .show_default()
      .takes_one_word();
  cmd.add_number("--nodes", a->nodes, "Numbers of nodes, with commas, instead of --gpus", 1, kMaxPlannedRanks)
      .takes_one_word();
  cmd.add_number("--gpus-per-node", a->per_node, "GPUs of each node (with --rates cpu: processes)", 1, 1024)
      .show_default();
  cmd.add_option("--node-link", a->node_link,
                 "Rate from a node to other nodes, each way, which its GPUs share, such as 400Gb/s or 50GB/s; default: "
                 "node_link_bytes_per_second in the rates (bench links measures it)")
      .type_name("RATE");
  cmd.add_bytes(
      "--memory", a->memory,
      "Memory of each GPU as it is sold, such as 80GB (79.1 GiB usable on an h100); default: the memory in the rates. "
      "train.memory_budget applies as well",
      1 << 20, std::uint64_t{1} << 50);
  cmd.add_bytes("--host", a->host,
                "Host memory per device for activations, states and the outer optimizer, such as 100GB; default: "
                "train.activation_offload_bytes",
                1, std::uint64_t{1} << 50);
  cmd.add_number("--context", a->contexts, "Contexts to plan instead of model.context, with commas", 1, kMaxLength)
      .takes_one_word();
  cmd.add_option(
         "--rates", a->rates,
         str(kRatesText, "; default with --gpus or --memory on a machine without GPUs: h100, or h200 for more memory"))
      .show_default();
  cmd.add_number("--rows", a->rows, "Layouts to show for each number of GPUs and context", 1, 10'000).show_default();
  cmd.add_flag("--longest-context", a->longest,
               "Find the longest context that fits with one sequence at a time, and show its layout and memory");
  cmd.add_flag("--advise", a->advise,
               "Compare the kinds of attention, including those that select blocks, and print settings per context");
  add_bytes_options(cmd, *a);
  cmd.add_flag("--all-layouts", a->all_layouts,
               "Plan all layouts, even if the settings give parallel.dp, cp, tp or zero");
  cmd.add_option("--svg", a->svg, "Draw the memory of the fastest layout's step to this file");
  cmd.footer(
      "parallel.dp, cp, tp and zero are kept if the settings give them. Otherwise all layouts are planned, which may\n"
      "take minutes. train.recompute=block train.micro_batch=1 shortens the search but may miss faster layouts.\n"
      "A smaller train.batch_size also shortens it, because the plan goes through all micro-batches of a step.\n"
      "With --nodes, only the layouts with the best estimates are planned.\n"
      "SIGINT or SIGTERM ends the search and prints the layouts found so far.\n"
      "Examples: ringmaster plan bench/shapes/1b.yaml --gpus 1,2,8 --rates h100 --context 32768,262144\n"
      "          ringmaster plan bench/shapes/1b.yaml --nodes 64 --node-link 400Gb/s --rates h100 --context 4194304");
  cmd.set_callback([a, cmd] {
    const auto given = [&](const char* option) { return cmd.find_option(option).given(); };
    a->asks_for_gpus = given("--gpus") || given("--nodes") || given("--memory");
    check_node_options(*a, given("--gpus"), given("--gpus-per-node"));
    plan(*a);
  });
}

}  // namespace ring
