#include "engine/activation_fit.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "comm/host.h"
#include "core/checked.h"
#include "core/counted.h"
#include "core/device_memory.h"
#include "core/host_memory.h"
#include "core/log.h"
#include "core/storage.h"
#include "engine/devices.h"
#include "parallel/plan/activation_solver.h"

namespace ring {
namespace {

// From what keeps most to what keeps least.
constexpr std::array kWays = {Recompute::none, Recompute::attention, Recompute::mlp, Recompute::block, Recompute::full};

// "12 blocks keep everything", "1 block computes the MLP again".
std::string text_of(std::ptrdiff_t blocks, Recompute r) {
  const bool one = blocks == 1;
  const std::string what = r == Recompute::attention ? "attention's inputs"
                           : r == Recompute::mlp     ? "the MLP"
                           : r == Recompute::full    ? "all but their input"
                                                     : "all but their input and attention's output";
  return str(counted(blocks, "block"), r == Recompute::none ? (one ? " keeps everything" : " keep everything")
                                                            : str(one ? " computes " : " compute ", what, " again"));
}

Recompute given(RecomputeChoice c) {
  switch (c) {
    case RecomputeChoice::attention: return Recompute::attention;
    case RecomputeChoice::mlp: return Recompute::mlp;
    case RecomputeChoice::block: return Recompute::block;
    case RecomputeChoice::full: return Recompute::full;
    default: return Recompute::none;
  }
}

std::int64_t nanoseconds(double seconds) { return static_cast<std::int64_t>(std::llround(seconds * 1e9)); }

std::int64_t time_of(const DryStep& step, const ScopeId& part, const DeviceRates& rates) {
  double seconds = 0;
  for (const DryCall& c : step.calls)
    if (c.part == part) seconds += seconds_of(rates, c.slot, c.cost);
  for (const DryTransfer& t : step.transfers)
    if (t.part == part) seconds += seconds_of(rates, t.transfer);
  return nanoseconds(seconds);
}

// A step with every block treated alike, for each way: what a block takes does not depend on how the others are
// treated.
class Ways {
 public:
  Ways(const Config& config, int world, const DeviceRates& rates) : config_(config), world_(world), rates_(rates) {}

  const DryStep& step(std::size_t way) {
    while (steps_.size() <= way) steps_.push_back(dry(uniform(kWays[steps_.size()])));
    return steps_[way];
  }
  DryStep dry(const ActivationPlan& plan) const { return dry_step(config_, world_, plan); }
  ActivationPlan uniform(Recompute r) const {
    return ActivationPlan::uniform(config_.model.layers, r, config_.train.activation_offload);
  }

  std::vector<std::vector<PartOption>> options() {
    std::vector<std::vector<PartOption>> parts;
    for (std::size_t i = 0; i < step(0).parts.size(); ++i) {
      std::vector<PartOption>& ways = parts.emplace_back();
      const bool block = step(0).parts[i].part.kind == ScopeKind::block;
      for (std::size_t way = 0; way < (block ? kWays.size() : 1); ++way) ways.push_back(option(way, i));
      const std::int64_t fastest = std::ranges::min(ways, {}, &PartOption::nanoseconds).nanoseconds;
      for (PartOption& o : ways) o.nanoseconds -= fastest;
    }
    return parts;
  }
  ActivationPlan plan_of(const ActivationChoice& choice) {
    ActivationPlan plan = uniform(Recompute::none);
    for (std::size_t i = 0; i < choice.options.size(); ++i)
      if (const ScopeId part = step(0).parts[i].part; part.kind == ScopeKind::block)
        plan.blocks[static_cast<std::size_t>(part.block)].recompute =
            kWays[static_cast<std::size_t>(choice.options[i])];
    return plan;
  }

 private:
  PartOption option(std::size_t way, std::size_t part) {
    const PartMemory& m = step(way).parts[part];
    return {m.kept, m.forward_peak, m.backward_peak, time_of(step(way), m.part, rates_)};
  }

  const Config& config_;
  int world_;
  const DeviceRates& rates_;
  std::vector<DryStep> steps_;
};

std::optional<ActivationFit> solved(Ways& ways, std::size_t budget) {
  const std::vector<std::vector<PartOption>> parts = ways.options();
  const std::size_t base = ways.step(0).parts.front().before;
  std::size_t room = budget;  // shrinks by what gaps between blocks of the slab take
  for (int tries = 0; tries < 16; ++tries) {
    const auto choice = solve_activations(parts, base, room);
    if (!choice) return {};
    ActivationFit fit{ways.plan_of(*choice), 0, budget, static_cast<double>(choice->nanoseconds) * 1e-9};
    fit.peak = ways.dry(fit.plan).peak();
    if (fit.peak <= budget) return fit;
    room -= std::min(room, std::max(fit.peak - budget, room / 512));
  }
  return {};
}

// What libraries (cuBLAS, NCCL) take of a GPU while it trains; of a host, what files that are read and everything else
// take.
constexpr std::size_t kLibraries = std::size_t{3} << 29;
constexpr double kOfHost = 0.9;

std::size_t processes_here(Mesh& mesh) {
  std::array<char, 256> name{};
  ::gethostname(name.data(), name.size() - 1);
  return static_cast<std::size_t>(std::ranges::count(gather_host(mesh.host(), name.data()), name.data()));
}

// This process's share of the memory, whole or as far as it is free.
std::size_t device_share(const Config& c, Mesh& mesh, bool whole) {
  if (const auto gpu = device_memory({backend_of(c.run.device), mesh.device().index})) {
    const std::size_t bytes = whole ? gpu->total : gpu->free;
    return bytes - std::min(bytes, kLibraries);
  }
  const std::vector<MemoryBound> bounds = memory_bounds();
  const MemoryBound& host = tightest(bounds);
  const double bytes = kOfHost * static_cast<double>(whole ? host.total : host.available);
  return static_cast<std::size_t>(bytes) / processes_here(mesh);
}

}  // namespace

std::string ActivationFit::text() const {
  std::string text;
  for (const Recompute r : kWays)
    if (const auto n = std::ranges::count(plan.blocks, r, &BlockPlan::recompute))
      text += str(text.empty() ? "" : ", ", text_of(n, r));
  if (peak) text += str(": ", bytes_text(peak), " of ", bytes_text(budget));
  return text;
}

std::optional<ActivationFit> find_activation_fit(const Config& c, int world, std::size_t budget,
                                                 const DeviceRates& rates, std::size_t* least) {
  Ways ways(c, world, rates);
  const auto uniform = [&](Recompute r) -> std::optional<ActivationFit> {
    const ActivationPlan plan = ways.uniform(r);
    const std::size_t peak = r == Recompute::none ? ways.step(0).peak() : ways.dry(plan).peak();
    if (peak <= budget) return ActivationFit{plan, peak, budget, 0};
    if (least) *least = peak;
    return {};
  };
  if (c.train.recompute != RecomputeChoice::automatic) return uniform(given(c.train.recompute));
  if (const auto everything = uniform(Recompute::none)) return everything;
  if (const auto plan = solved(ways, budget)) return plan;
  if (const auto nothing = uniform(Recompute::block)) return nothing;
  return {};
}

DeviceRates rates_here(const Config& c) {
  const bool cpu = backend_of(c.run.device) == Backend::cpu;
  return shipped_rates(cpu ? "cpu" : "h200", narrow<int>(c.run.threads));
}

std::size_t memory_budget(const Config& c, Mesh& mesh) {
  const double asked = c.train.memory_budget;
  std::size_t own = static_cast<std::size_t>(asked);
  if (asked <= 1)
    own = static_cast<std::size_t>((asked > 0 ? asked : 1) * static_cast<double>(device_share(c, mesh, asked > 0)));
  double least = -static_cast<double>(own);
  all_reduce_host(mesh.host(), {&least, 1}, Reduce::max);
  return static_cast<std::size_t>(-least);
}

}  // namespace ring
