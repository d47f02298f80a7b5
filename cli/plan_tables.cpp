#include "cli/plan_tables.h"

#include <algorithm>
#include <span>
#include <string>
#include <vector>

#include "cli/print.h"
#include "core/counted.h"
#include "core/fields.h"
#include "core/fields_parse.h"
#include "core/joined.h"
#include "core/storage.h"
#include "engine/devices.h"
#include "engine/memory_kinds.h"
#include "model/scopes.h"
#include "parallel/stages.h"

namespace ring {
namespace {

const char* name_of(Recompute way) {
  switch (way) {
    case Recompute::none: return "none";
    case Recompute::attention: return "attention";
    case Recompute::mlp: return "mlp";
    case Recompute::block: return "block";
    case Recompute::full: return "full";
  }
  return "?";
}

// Consecutive blocks with the same plan.
struct BlockRun {
  std::size_t first, end;
  BlockPlan plan;
};
std::vector<BlockRun> block_runs(const ActivationPlan& plan) {
  std::vector<BlockRun> all;
  for (std::size_t i = 0; i < plan.blocks.size(); ++i) {
    if (all.empty() || all.back().plan != plan.blocks[i]) all.push_back({i, i, plan.blocks[i]});
    all.back().end = i + 1;
  }
  return all;
}

// Returns what blocks recompute, e.g. "none" for all or "12 none+9 mlp+3 block/host": the number of blocks with each
// plan, "/host" if a plan also offloads.
std::string ways_text(const ActivationPlan& plan) {
  std::vector<std::pair<BlockPlan, int>> ways;
  for (const BlockPlan& b : plan.blocks) {
    const auto same = std::ranges::find(ways, b, &std::pair<BlockPlan, int>::first);
    if (same != ways.end())
      ++same->second;
    else
      ways.emplace_back(b, 1);
  }
  std::string text;
  for (const auto& [way, n] : ways)
    text += str(text.empty() ? "" : "+", ways.size() == 1 ? "" : str(n, ' '), name_of(way.recompute),
                way.offload ? "/host" : "");
  // "3x4 again": three segments of four blocks each (ActivationPlan::segments).
  if (plan.segments > 0) text += str(", ", plan.segments, 'x', plan.segment_blocks, " again");
  return text;
}

// Prints what each block saves on the device, what it offloads, and what it needs while it runs.
void print_blocks(const PlannedStep& p) {
  print_format("\nIts blocks, in MiB of one %s:\n\n", p.config.parallel.pp_slices > 1 ? "slice" : "micro-batch");
  if (const ActivationPlan& plan = p.activations.plan; plan.segments > 0)
    print_format("(the backward recomputes the first %lld, %lld at a time, from the input of the first of these)\n\n",
                 static_cast<long long>(plan.segments * plan.segment_blocks),
                 static_cast<long long>(plan.segment_blocks));
  print_format("%-12s %-12s %10s %10s %10s %10s\n", "blocks", "recompute", "on device", "on host", "forward",
               "backward");
  constexpr double kMiB = 1 << 20;
  const auto mib = [](std::size_t bytes) { return static_cast<double>(bytes) / kMiB; };
  for (const BlockRun& run : block_runs(p.activations.plan)) {
    const ScopeId first = block_scope(static_cast<std::int64_t>(run.first));
    const auto memory = std::ranges::find(p.parts, first, &PartMemory::part);
    if (memory == p.parts.end()) continue;
    const std::string blocks = run.end - run.first == 1 ? str(run.first) : str(run.first, "..", run.end - 1);
    // PartMemory::kept includes what is offloaded.
    const std::size_t on_device = memory->kept > memory->host ? memory->kept - memory->host : 0;
    print_format("%-12s %-12s %10.1f %10.1f %10.1f %10.1f\n", blocks.c_str(), name_of(run.plan.recompute),
                 mib(on_device), mib(memory->host), mib(memory->forward_peak), mib(memory->backward_peak));
  }
}

MemoryUnit unit_for(std::span<const PlannedStep> all) {
  std::size_t largest = 0;
  for (const PlannedStep& p : all) largest = std::max({largest, p.peak, p.host});
  return unit_of(largest);
}

// Returns the layout's degrees, and its offload of optimizer states if there is one.
std::string layout_text(const PlannedStep& p) {
  const StateOffload offload = p.config.optimizer.offload;
  return offload == StateOffload::none ? p.layout : str(p.layout, ", offload ", to_string(offload));
}

std::string chunk_text(std::int64_t tokens) { return tokens ? std::to_string(tokens) : "all"; }

// The table's columns that depend on its rows.
struct Columns {
  explicit Columns(std::span<const PlannedStep> all) : unit(unit_for(all)), several_nodes(all[0].world.nodes() > 1) {
    for (const PlannedStep& p : all) layout = std::max(layout, layout_text(p).size());
  }
  MemoryUnit unit;
  bool several_nodes;
  std::size_t layout = 26;  // width of the first column
  int width() const { return static_cast<int>(layout); }
};

void print_head(const Columns& c) {
  print_format("%-*s %6s %6s %-22s %8s %8s %8s %8s %8s %9s %12s ", c.width(), str("layout, in ", c.unit.name).c_str(),
               "micro", "chunk", "recompute", "states", "in step", "peak", "budget", "host", "seconds", "tokens/s");
  if (c.several_nodes) print_format("%9s ", "per GPU");
  print_format("%6s  %s\n", "MFU", "mostly");
}

void print_row(const PlannedStep& p, const Columns& c) {
  const ParallelPlan plan = plan_of(p.config, p.world);
  const MemoryUnit& unit = c.unit;
  print_format("%-*s %6lld %6s %-22s %8.2f %8.2f %8.2f %8.2f %8.2f %9.4g %12.0f ", c.width(), layout_text(p).c_str(),
               static_cast<long long>(plan.micro_batch), chunk_text(p.config.train.mlp_chunk).c_str(),
               ways_text(p.activations.plan).c_str(), unit.of(p.weights + p.gradients + p.optimizer_states),
               unit.of(p.inside_step), unit.of(p.peak), unit.of(p.activations.budget), unit.of(p.host), p.seconds(),
               p.tokens_per_second);
  if (c.several_nodes) print_format("%9.4g ", p.tokens_per_second / p.world);
  print_format("%5.1f%%  %s\n", 100 * p.mfu, p.limit);
}

// Prints each layout's memory by kind.
void print_kinds(std::span<const PlannedStep> all, const Columns& c) {
  const MemoryUnit& unit = c.unit;
  print_format("\n%-*s", c.width(), str("by kind, in ", unit.name).c_str());
  for (const MemoryKind& kind : memory_by_kind(all.front())) print_format(" %9s", kind.name);
  print_format(" %9s\n", "in all");
  for (const PlannedStep& p : all) {
    print_format("%-*s", c.width(), layout_text(p).c_str());
    for (const MemoryKind& kind : memory_by_kind(p)) print_format(" %9.3f", unit.of(kind.bytes));
    print_format(" %9.3f\n", unit.of(p.peak));
  }
}

void print_shortages(const std::vector<LayoutShortage>& all, std::size_t max_rows) {
  std::vector<std::string> texts;
  for (std::size_t i = 0; i < all.size() && i < max_rows; ++i)
    texts.push_back(str(all[i].layout, " needs at least ", bytes_text(all[i].min_bytes)));
  if (all.size() > max_rows) texts.push_back(str("and ", all.size() - max_rows, " more (--rows)"));
  print_format("\nlayouts that do not fit, even with all recomputation and offloading that the settings allow: %s\n",
               joined(texts, "; ").c_str());
}

}  // namespace

MemoryUnit unit_of(std::size_t largest) {
  constexpr std::size_t kMiB = 1 << 20, kGiB = 1 << 30;
  return largest < kGiB ? MemoryUnit{"MiB", kMiB} : MemoryUnit{"GiB", kGiB};
}

void print_layouts(const Layouts& all, std::size_t max_rows) {
  const std::span<const PlannedStep> shown(all.fit.data(), std::min(max_rows, all.fit.size()));
  if (!shown.empty()) {
    const Columns columns(shown);
    print_head(columns);
    for (const PlannedStep& p : shown) print_row(p, columns);
    if (all.fit.size() > max_rows) print_format("and %zu slower ones (--rows)\n", all.fit.size() - max_rows);
    if (all.slower > 0)
      print_format("%zu other layouts were not planned, because their estimated times are longer (--rows)\n",
                   all.slower);
    print_kinds(shown, columns);
  }
  if (!all.too_large.empty()) print_shortages(all.too_large, max_rows);
}

void print_legend(const std::string& device) {
  print_format(
      "\nmicro: sequences at a time per %s; chunk: tokens at a time in an MLP; recompute: parts that the backward\n"
      "recomputes, with the number of blocks; states: weights, gradients and optimizer states; in step: most memory\n"
      "of a step in addition to states; peak: most memory at once; budget: memory for activations; host: host\n"
      "memory; seconds: time of a step; per GPU: tokens/s of one GPU; MFU: share of the data sheet's\n"
      "FLOP/s, where attention counts only the kept pairs (causal attention: half of all); mostly: the part that\n"
      "takes most of the step's time\n",
      device.c_str());
}

std::string choice_text(Config config, const std::string& key) {
  const config::Node root = bind_config(config);
  const config::Field* field = config::find_field(root, key);
  RING_CHECK(field && field->node.kind == config::Kind::choice, key, " is not a setting with choices");
  return std::get<std::string>(field->node.get());
}

std::string stages_text(const ParallelConfig& c) {
  if (c.pp == 1) return "";
  return str("pp: ", c.pp, c.pp_order == PipelineOrder::eager_1f1b ? ", pp_order: eager_1f1b" : "",
             c.pp_parts > 1 ? str(", pp_parts: ", c.pp_parts) : "",
             c.pp_slices > 1 ? str(", pp_slices: ", c.pp_slices) : "",
             c.pp_division.empty() ? "" : ", " + division_text(c.pp_division), ", ");
}

void print_settings(const PlannedStep& p, const char* which) {
  const ParallelConfig& c = p.config.parallel;
  const ParallelPlan plan = plan_of(p.config, p.world);
  const std::string levels = str(plan.cp > 1 && c.cp_schedule == ContextSchedule::hybrid ? ", cp_schedule: hybrid" : "",
                                 c.cp_ranks_per_node > 0 ? str(", cp_ranks_per_node: ", c.cp_ranks_per_node) : "");
  print_format(
      "\nThe %s for a context of %lld tokens, as settings:\n\n    parallel: {%sdp: %d, cp: %d, tp: %d, zero: "
      "%lld%s}\n",
      which, static_cast<long long>(p.config.model.context), stages_text(c).c_str(), plan.dp, plan.cp, plan.tp,
      static_cast<long long>(c.zero), levels.c_str());
  const std::string host =
      p.activations.host ? str(", activation_offload_bytes: ", p.config.train.activation_offload_bytes) : "";
  const std::int64_t tokens = p.config.train.mlp_chunk;
  const std::string chunk =
      str(tokens ? str(", mlp_chunk: ", tokens) : "",
          plan.in_chunks && plan.pp == 1 ? str(", sequence_chunk: ", p.config.train.sequence_chunk) : "");
  print_format("    train: {micro_batch: %lld, recompute: %s%s%s}\n", static_cast<long long>(plan.micro_batch),
               choice_text(p.config, "train.recompute").c_str(), chunk.c_str(), host.c_str());
  if (p.config.optimizer.offload != StateOffload::none)
    print_format("    optimizer: {offload: %s, offload_staging_bytes: %lld}\n",
                 to_string(p.config.optimizer.offload).data(),
                 static_cast<long long>(p.config.optimizer.offload_staging_bytes));
}

// Prints each pipeline stage's blocks, peak memory and time, and the share of a step that stages spend waiting.
void print_stages(const PlannedStep& p) {
  if (p.stage_peaks.empty()) return;
  const ParallelPlan plan = plan_of(p.config, p.world);
  const std::int64_t slices = plan.config.pp_slices;
  print_format("\nEach pipeline stage waits for others in %.1f %% of a step (the bubble) of %s%s.\n", 100 * p.bubble,
               counted(plan.micro_batches, "micro-batch").c_str(),
               slices > 1 ? str(" with ", slices, " slices each").c_str() : "");
  print_format("A message between stages takes %.3g ms. Stages wait for messages in %.1f %% of a step",
               1e3 * p.stage_message_seconds, 100 * p.message_waits);
  if (p.eager_message_waits)
    print_format(" (with parallel.pp_order: eager_1f1b, which needs more memory, %.1f %%)",
                 100 * *p.eager_message_waits);
  print_format(".\n");
  for (int stage = 0; stage < plan.pp; ++stage) {
    std::vector<std::string> blocks;
    for (const BlockRange& part : parts_of_stage(p.config.model, plan, stage))
      blocks.push_back(part.end - part.first == 1 ? str(part.first) : str(part.first, "-", part.end - 1));
    const auto at = static_cast<std::size_t>(stage);
    print_format("    stage %d: blocks %s, peak %s, kernels take %.3g ms of a step\n", stage,
                 joined(blocks, ", ").c_str(), bytes_text(p.stage_peaks[at]).c_str(), 1e3 * p.stage_seconds[at]);
  }
  if (!p.better_division.empty())
    print_format("By the times of the blocks, the slowest stage is faster with parallel.%s.\n",
                 division_text(p.better_division).c_str());
}

void print_planned(const PlannedStep& p) {
  print_settings(p, "fastest");
  print_stages(p);
  print_blocks(p);
}

void print_sent(const SentTable& table, std::int64_t ranks_of_node) {
  const PlannedStep& step = table.step;
  const ParallelPlan plan = plan_of(step.config, step.world);
  double largest = 0;
  for (const SentRow& row : table.rows) largest = std::max(largest, row.sent.all());
  const MemoryUnit unit = unit_of(static_cast<std::size_t>(largest));
  print_format(
      "\n%s that a rank sends in a step, with %lld tokens of each sequence per rank of cp: dp %d, tp %d, zero %lld,\n"
      "%lld ranks on a node, %s of %s, recompute %s\n\n",
      unit.name, static_cast<long long>(table.rank_tokens), plan.dp, plan.tp, static_cast<long long>(plan.config.zero),
      static_cast<long long>(ranks_of_node), counted(plan.micro_batches, "micro-batch").c_str(),
      counted(plan.micro_batch, "sequence").c_str(), ways_text(step.activations.plan).c_str());
  print_format("%9s %15s %12s %12s %12s %12s %12s %12s %12s\n", "cp", "context", "attention", "weights", "gradients",
               "tensor", "in all", "bytes/token", "other nodes");
  for (const SentRow& row : table.rows) {
    print_format("%9lld %15lld ", static_cast<long long>(row.cp), static_cast<long long>(row.context));
    if (!row.error.empty()) {
      print_format("%s\n", row.error.c_str());
      continue;
    }
    for (const double bytes : {row.sent.context, row.sent.gathers, row.sent.reductions, row.sent.tensor})
      print_format("%12.4g ", bytes / unit.bytes);
    print_format("%12.4g %12.4g %12.4g%s\n", row.sent.all() / unit.bytes,
                 row.sent.all() / static_cast<double>(table.step_tokens), row.sent.between_nodes / unit.bytes,
                 row.upper_bound ? " <" : "");
  }
  print_format(
      "\nattention: keys, values and their gradients to other ranks of cp; weights: gathered by parallel.zero;\n"
      "gradients: their sums, and small sums such as the loss; tensor: messages of tp; bytes/token: for each token of\n"
      "the rank; other nodes: part of all that leaves the node. The rank that sends the most counts.\n");
  if (std::ranges::any_of(table.rows, &SentRow::upper_bound))
    print_format("<: upper bound, extrapolated from fewer ranks, because attention may not reach all ranks\n");
}

}  // namespace ring
