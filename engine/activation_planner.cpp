#include "engine/activation_planner.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "core/checked.h"
#include "core/counted.h"
#include "engine/devices.h"

namespace ring {
namespace {

// Sorted, from the one that saves the most activations to the one that saves the fewest.
constexpr std::array kRecomputes = {Recompute::none, Recompute::attention, Recompute::mlp, Recompute::block,
                                    Recompute::full};

std::vector<Recompute> recomputes_of(const Config& c) {
  if (c.train.recompute != RecomputeChoice::automatic) return {given_recompute(c)};
  return {kRecomputes.begin(), kRecomputes.end()};
}

std::size_t room_of(const Config& c, const DeviceRates& rates, std::size_t given) {
  if (!may_offload(c)) return 0;
  if (c.train.activation_offload == Switch::on) return given ? given : kBoundless;
  return rates.host_bytes_per_second > 0 ? given : 0;  // without this rate, the cost of a transfer is unknown
}

std::vector<BlockPlan> policies_of(const Config& c, std::size_t host_room) {
  std::vector<BlockPlan> policies;
  for (const bool offload : {false, true}) {
    if (offload ? host_room == 0 : c.train.activation_offload == Switch::on) continue;
    for (const Recompute r : recomputes_of(c)) policies.push_back({r, offload});
  }
  return policies;
}

std::int64_t nanoseconds(double seconds) { return static_cast<std::int64_t>(std::llround(seconds * 1e9)); }

const char* recomputed(Recompute r) {
  switch (r) {
    case Recompute::attention: return "attention's inputs";
    case Recompute::mlp: return "the MLP";
    case Recompute::block: return "all but their input and attention's output";
    default: return "all but their input";
  }
}

}  // namespace

Recompute given_recompute(const Config& c) {
  switch (c.train.recompute) {
    case RecomputeChoice::attention: return Recompute::attention;
    case RecomputeChoice::mlp: return Recompute::mlp;
    case RecomputeChoice::block: return Recompute::block;
    case RecomputeChoice::full: return Recompute::full;
    default: return Recompute::none;
  }
}

std::string blocks_text(std::ptrdiff_t blocks, const BlockPlan& plan) {
  const char* s = blocks == 1 ? "s" : "";
  const std::string who = counted(blocks, "block");
  if (plan.recompute == Recompute::none) return str(who, " keep", s, " everything", plan.offload ? " on the host" : "");
  return str(who, " recompute", s, " ", recomputed(plan.recompute),
             plan.offload ? str(" and keep", s, " the rest on the host") : "");
}

std::string plan_text(const ActivationPlan& plan) {
  std::string text;
  for (const bool offload : {false, true})
    for (const Recompute r : kRecomputes)
      if (const auto n = std::ranges::count(plan.blocks, BlockPlan{r, offload}))
        text += str(text.empty() ? "" : ", ", blocks_text(n, {r, offload}));
  if (plan.segments > 0)
    text += str("; of the inputs of the first ", plan.segments * plan.segment_blocks, " blocks, one in ",
                plan.segment_blocks, " is kept, and the others are recomputed from it");
  return text;
}

ActivationPlanner::ActivationPlanner(const Config& config, WorldSize world, const DeviceRates& rates,
                                     std::size_t host_room)
    : config_(config),
      world_(world),
      rates_(rates),
      precision_(precision_of(config)),
      host_room_(room_of(config, rates, host_room)),
      policies_(policies_of(config, host_room_)) {}

ActivationPlan ActivationPlanner::uniform_plan(std::size_t policy) const {
  return ActivationPlan::uniform(config_.model.layers, policies_[policy].recompute, policies_[policy].offload);
}

DryStep ActivationPlanner::dry_run(const ActivationPlan& plan, std::size_t host_room) const {
  Config c = config_;
  c.train.activation_offload_bytes = host_room == kBoundless ? 0 : narrow<std::int64_t>(host_room);
  DryStep largest = dry_step(c, world_, plan);
  for (int stage = 1; stage < c.parallel.pp; ++stage) {
    DryStep step = dry_step(c, world_, plan, first_rank_of_stage(c, world_, stage));
    if (step.peak() > largest.peak()) largest = std::move(step);
  }
  return largest;
}

DryStep ActivationPlanner::dry_run(const ActivationPlan& plan) const { return dry_run(plan, host_room_); }

const DryStep& ActivationPlanner::step_of_policy(std::size_t policy) {
  while (steps_.size() <= policy) steps_.push_back(dry_run(uniform_plan(steps_.size()), kBoundless));
  return steps_[policy];
}

const PartOptions& ActivationPlanner::part_options() {
  if (!options_.empty()) return options_;
  for (std::size_t i = 0; i < step_of_policy(0).parts.size(); ++i) {
    const bool block = step_of_policy(0).parts[i].part.is_repeated();
    options_.push_back(block ? block_options(i) : std::vector{make_option(0, i)});
  }
  return options_;
}

std::vector<PartOption> ActivationPlanner::block_options(std::size_t part) {
  std::vector<PartOption> options;
  for (std::size_t policy = 0; policy < count(); ++policy) options.push_back(make_option(policy, part));
  const std::int64_t fastest = std::ranges::min(options, {}, &PartOption::nanoseconds).nanoseconds;
  for (PartOption& o : options) o.nanoseconds -= fastest;
  return options;
}

// Offloading also costs kernel time: the copies use device memory bandwidth, one read or write per byte.
PartOption ActivationPlanner::make_option(std::size_t policy, std::size_t part) {
  const PartMemory& m = step_of_policy(policy).parts[part];
  const double moved = static_cast<double>(m.host) * static_cast<double>(ring::plan_of(config_, world_).forwards());
  PartOption o{.kept = m.kept, .forward_peak = m.forward_peak, .backward_peak = m.backward_peak, .host = m.host};
  o.forward = nanoseconds(seconds(policy, m.part, ScopePass::forward));
  o.backward = nanoseconds(seconds(policy, m.part, ScopePass::backward));
  o.nanoseconds = o.forward + o.backward + nanoseconds(2 * moved / rates_.bytes_per_second);
  if (m.host > 0 && rates_.host_bytes_per_second > 0) o.transfer = nanoseconds(moved / rates_.host_bytes_per_second);
  return o;
}

double ActivationPlanner::seconds(std::size_t policy, const ScopeId& part, ScopePass pass) const {
  double seconds = 0;
  for (const DryCall& c : steps_[policy].calls)
    if (c.part == part && c.pass == pass) seconds += seconds_of(rates_, precision_, c.slot, c.cost);
  for (const DryTransfer& t : steps_[policy].transfers)
    if (t.part == part && t.pass == pass) seconds += seconds_of(rates_, t.transfer);
  return seconds;
}

ActivationPlan ActivationPlanner::plan_of(const ActivationChoice& choice) {
  ActivationPlan plan = uniform_plan(0);
  for (std::size_t i = 0; i < choice.options.size(); ++i)
    if (const ScopeId part = step_of_policy(0).parts[i].part; part.is_repeated())
      plan.blocks[static_cast<std::size_t>(part.number)] = policies_[static_cast<std::size_t>(choice.options[i])];
  plan.blocks.back().offload = false;  // the backward begins with the last block, so offloading it saves nothing
  return plan;
}

SolvedPlan ActivationPlanner::same_for_all(std::size_t policy) {
  std::vector<int> options;
  for (const std::vector<PartOption>& o : part_options()) options.push_back(o.size() > 1 ? narrow<int>(policy) : 0);
  const ActivationChoice choice = evaluate_options(part_options(), std::move(options), base());
  return {plan_of(choice), choice.nanoseconds};
}

std::optional<SolvedPlan> ActivationPlanner::fastest_plan(ActivationBudget room) {
  const auto choice = solve_activations(part_options(), base(), room);
  if (!choice) return {};
  return SolvedPlan{plan_of(*choice), choice->nanoseconds};
}

std::optional<SolvedPlan> ActivationPlanner::min_memory_plan() {
  return fastest_plan({min_budget(part_options(), base(), host_room()), host_room()});
}

std::size_t ActivationPlanner::first_block() {
  std::size_t first = 0;
  while (!step_of_policy(0).parts[first].part.is_repeated()) ++first;
  return first;
}

std::vector<Segments> ActivationPlanner::segments() const {
  const TrainConfig& t = config_.train;
  if (t.recompute != RecomputeChoice::automatic || t.activation_offload == Switch::on) return {};
  return segments_of(static_cast<std::size_t>(config_.model.layers));
}

// Returns the options with blocks merged into segments. Segments use only the first kRecomputes.size() policies, which
// do not offload.
PartOptions ActivationPlanner::in_segments(const Segments& s) {
  return ring::in_segments(part_options(), s, first_block(), kRecomputes.size());
}

SolvedPlan ActivationPlanner::plan_of(const ActivationChoice& choice, const Segments& s) {
  ActivationChoice blocks{.options = {}};
  for (std::size_t i = 0; i < choice.options.size(); ++i) {
    const bool segment = i >= first_block() && i < first_block() + s.count;
    blocks.options.insert(blocks.options.end(), segment ? s.blocks : 1, choice.options[i]);
  }
  SolvedPlan solved{plan_of(blocks), choice.nanoseconds};
  solved.plan.segments = narrow<std::int64_t>(s.count);
  solved.plan.segment_blocks = narrow<std::int64_t>(s.blocks);
  return solved;
}

std::optional<SolvedPlan> ActivationPlanner::fastest_in_segments(ActivationBudget room) {
  std::optional<SolvedPlan> fastest;
  for (const Segments& s : segments())
    if (const auto choice = solve_activations(in_segments(s), base(), room))
      if (!fastest || choice->nanoseconds < fastest->nanoseconds) fastest = plan_of(*choice, s);
  return fastest;
}

std::optional<SolvedPlan> ActivationPlanner::min_memory_in_segments() {
  std::size_t min = kBoundless;
  Segments smallest;
  for (const Segments& s : segments())
    if (const std::size_t needs = min_budget(in_segments(s), base(), host_room()); needs < min)
      min = needs, smallest = s;
  if (smallest.count == 0) return {};
  const auto choice = solve_activations(in_segments(smallest), base(), {min, host_room()});
  return plan_of(choice.value(), smallest);
}

}  // namespace ring
