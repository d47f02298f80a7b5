#include "engine/memory_choice.h"

#include <algorithm>
#include <vector>

#include "comm/host.h"
#include "core/checked.h"
#include "core/counted.h"
#include "core/joined.h"
#include "core/log.h"
#include "engine/devices.h"
#include "engine/rates.h"
#include "model/architectures.h"

namespace ring {
namespace {

constexpr double kLess = 0.9, kALittleLess = 0.98;  // new budgets, relative to the peak that did not fit

std::size_t less_than(std::size_t bytes) { return static_cast<std::size_t>(kLess * static_cast<double>(bytes)); }

// Returns the micro-batch of a replica.
std::int64_t rows_of(const Config& c, int world) { return plan_of(c, world).micro_batch; }

// Returns the micro-batches that divide a replica's share, in decreasing order from half of `rows`.
std::vector<std::int64_t> fewer_rows(const Config& c, int world, std::int64_t rows) {
  const ParallelPlan plan = plan_of(c, world);
  const std::int64_t share = plan.micro_batch * plan.micro_batches;
  std::vector<std::int64_t> fewer;
  for (std::int64_t n = rows / 2; n >= 1; --n)
    if (share % n == 0) fewer.push_back(n);
  return fewer;
}

// Returns the choice for a micro-batch of `rows`; nullopt if nothing fits or if there is no valid layout with `rows`.
std::optional<MemoryChoice> choice_within(Config c, int world, std::int64_t rows, std::size_t budget,
                                          std::size_t host_room, const DeviceRates& rates) try {
  c.train.micro_batch = rows;
  const std::optional<ActivationFit> fit = find_activation_fit(c, world, budget, rates, nullptr, host_room);
  if (!fit) return {};
  return MemoryChoice{rows, *fit, rates};
} catch (const Error&) {
  return {};
}

// Returns a choice for the same host memory and device rates as `before`.
std::optional<MemoryChoice> choice_like(const MemoryChoice& before, const Config& c, int world, std::int64_t rows,
                                        std::size_t budget) {
  return choice_within(c, world, rows, budget, before.fit.host_room, before.rates);
}

// Returns a choice with the same micro-batch that needs less memory: another activation plan, or less staging memory
// for offloaded states. Accepts a slightly smaller choice only if none is much smaller.
std::optional<MemoryChoice> computing_more(const Config& c, int world, const MemoryChoice& before) {
  const bool blocks =
      c.train.recompute == RecomputeChoice::automatic || c.train.activation_offload == Switch::automatic;
  if (!blocks && !chooses_staging(c)) return {};
  for (const double share : {kLess, kALittleLess}) {
    const auto budget = static_cast<std::size_t>(share * static_cast<double>(before.fit.peak));
    if (const auto next = choice_like(before, c, world, before.micro_batch, budget)) return next;
  }
  return {};
}

std::optional<MemoryChoice> with_fewer_rows(const Config& c, int world, const MemoryChoice& before) {
  const std::vector<std::int64_t> fewer = fewer_rows(c, world, before.micro_batch);
  for (const std::int64_t rows : fewer)
    if (const auto next = choice_like(before, c, world, rows, less_than(before.fit.peak))) return next;
  if (fewer.empty()) return {};
  return choice_like(before, c, world, fewer.back(), before.fit.peak - 1);  // accepts any saving
}

[[noreturn]] void refuse(const Config& c, std::int64_t rows, std::size_t budget, const ActivationFit& smallest) {
  const std::size_t host = smallest.host_room;
  fail("train.memory_budget: a step does not fit into ", bytes_text(budget), ", whatever is recomputed",
       host ? str(" or moved to the host (", bytes_text(host), ")") : "", "; it needs ", bytes_text(smallest.peak),
       ". Raise the budget, or ", memory_advice(c, rows));
}

std::string settings_that_fit(Config c, int world, std::size_t budget, std::size_t host_room,
                              const DeviceRates& rates) {
  c.train.recompute = RecomputeChoice::automatic;
  const std::int64_t given = rows_of(c, world);
  std::vector<std::int64_t> rows = fewer_rows(c, world, given);
  rows.insert(rows.begin(), given);
  for (const std::int64_t n : rows)
    if (const auto choice = choice_within(c, world, n, budget, host_room, rates))
      return str("train.recompute: auto", n == given ? "" : str(" with train.micro_batch: ", n),
                 " would fit: ", choice->fit.text());
  return "No values of train.recompute and train.micro_batch would fit. Lower model.context, or share the model or its "
         "sequences among more processes (parallel)";
}

// Called if nothing is predicted to fit: the run then tries the plan with the lowest peak that the settings allow.
MemoryChoice smallest_choice(const Config& c, Mesh& mesh, std::size_t budget, const ActivationFit& smallest,
                             const DeviceRates& rates) {
  if (mesh.rank() == 0)
    log::warn("a step needs about ", bytes_text(smallest.peak), ", but only ", bytes_text(budget), " are available. ",
              settings_that_fit(c, mesh.world(), budget, smallest.host_room, rates));
  MemoryChoice choice{rows_of(c, mesh.world()), smallest, rates};
  choice.fit.budget = budget;
  return choice;
}

// Makes rank-local settings that affect a plan equal on all ranks, because each rank computes the plan independently.
Config agreed(Config c, Mesh& mesh, std::size_t host_room) {
  if (c.train.activation_offload == Switch::automatic)
    c.train.activation_offload_bytes = narrow<std::int64_t>(host_room);
  double threads = static_cast<double>(c.run.threads);
  all_reduce_host(mesh.host(), {&threads, 1}, Reduce::max);
  c.run.threads = static_cast<std::int64_t>(threads);
  return c;
}

// Returns true if optimizer.offload: all saves more device memory than optimizer.offload: states. It does if kernels
// read bf16 copies of the master weights, and no other setting needs the master weights on the device.
bool masters_may_leave(const Config& c) {
  return c.train.precision == PrecisionChoice::bf16 && c.optimizer.master == DType::f32 &&
         allows_offload(c, StateOffload::all);
}

// Returns true if train.swiglu_inputs: fp8 is possible and not set.
bool may_round_swiglu_inputs(const Config& c) {
  if (c.train.swiglu_inputs == SwiGluInputs::fp8 || !linear_formats().contains(c.train.linears)) return false;
  LinearsConfig rounded = linears_of(c.train);
  rounded.fp8_swiglu_inputs = true;
  std::vector<SettingProblem> problems;
  bind_linears(*make_model(c.model), rounded, narrow<int>(c.parallel.tp), problems);
  return problems.empty();
}

// Adds the settings that save memory only on GPUs: on a CPU, device and host share one memory, and training is in fp32.
void add_remedies_of_gpu(const Config& c, std::vector<std::string>& remedies) {
  if (c.run.device != DeviceChoice::cuda) return;
  if (c.train.activation_offload == Switch::off) remedies.emplace_back("set train.activation_offload: auto");
  const StateOffload now = c.optimizer.offload;
  std::vector<std::string> more;
  if (now == StateOffload::none) more.emplace_back("states");
  if (now < StateOffload::all && masters_may_leave(c)) more.emplace_back("all");
  if (now == StateOffload::all && allows_offload(c, StateOffload::weights)) more.emplace_back("weights");
  if (!more.empty()) remedies.push_back("set optimizer.offload: " + joined(more, " or "));
  if (may_round_swiglu_inputs(c)) remedies.emplace_back("set train.swiglu_inputs: fp8 (which rounds gate and up)");
  if (c.optimizer.moments == MomentType::f32)
    remedies.emplace_back(c.train.precision == PrecisionChoice::bf16 ? "set optimizer.moments: bf16 or fp8"
                                                                     : "set optimizer.moments: fp8");
  else if (c.optimizer.moments == MomentType::bf16)
    remedies.emplace_back("set optimizer.moments: fp8");
}

}  // namespace

std::string memory_advice(const Config& c, std::int64_t rows) {
  std::vector<std::string> remedies = {rows > 1 ? "lower train.micro_batch or model.context" : "lower model.context"};
  if (c.train.recompute != RecomputeChoice::automatic) remedies.emplace_back("set train.recompute: auto");
  add_remedies_of_gpu(c, remedies);
  return str(joined(remedies, ", "), ", or share the model or its sequences among more processes (parallel)");
}

std::string MemoryChoice::text() const { return str(fit.text(), ", ", counted(micro_batch, "sequence"), " at a time"); }

std::string MemoryChoice::text(const std::string& lasting) const {
  ActivationFit plan = fit;
  plan.peak = 0;
  const std::string how = str("; ", plan.text(), ", ", counted(micro_batch, "sequence"), " at a time");
  if (!fit.peak) return lasting + how;
  return str("a step is predicted to take ", bytes_text(fit.peak), " of ", bytes_text(fit.budget), ": ", lasting,
             ", the rest for activations", how);
}

MemoryChoice choose_memory(const Config& config, Mesh& mesh, std::size_t host_room, std::size_t max) {
  const std::size_t free = memory_budget(config, mesh), room = min_over_ranks(host_room, mesh);
  const Config c = agreed(config, mesh, room);
  const DeviceRates rates = agreed_rates(c, mesh.host());
  ActivationFit smallest;
  const auto within = [&](std::size_t budget) {
    return find_activation_fit(c, mesh.world(), budget, rates, &smallest, room);
  };
  if (max && max < free) {
    if (const auto fit = within(max)) return {rows_of(c, mesh.world()), *fit, rates};
    if (mesh.rank() == 0)
      log::warn("memory: a step does not fit into ", bytes_text(max),
                ", the run's limit since memory ran out. It now uses all available memory, ", bytes_text(free));
  }
  if (const auto fit = within(free)) return {rows_of(c, mesh.world()), *fit, rates};
  if (max == 0 && c.train.recompute == RecomputeChoice::automatic) refuse(c, rows_of(c, mesh.world()), free, smallest);
  return smallest_choice(c, mesh, free, smallest, rates);
}

std::optional<std::int64_t> smaller_micro_batch(const Config& resolved, int world, std::int64_t rows) {
  Config c = resolved;
  for (const std::int64_t n : fewer_rows(c, world, rows)) try {
      c.train.micro_batch = n;
      plan_of(c, world);
      return n;
    } catch (const Error&) {  // the layout is not valid
    }
  return {};
}

std::optional<MemoryChoice> smaller_choice(const Config& c, int world, const MemoryChoice& before) {
  if (const auto next = computing_more(c, world, before)) return next;
  return with_fewer_rows(c, world, before);
}

}  // namespace ring
