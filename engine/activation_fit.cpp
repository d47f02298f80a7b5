#include "engine/activation_fit.h"

#include <algorithm>

#include "comm/host.h"
#include "core/checked.h"
#include "core/device_memory.h"
#include "core/host_chunks.h"
#include "core/host_memory.h"
#include "core/log.h"
#include "core/storage.h"
#include "engine/activation_planner.h"
#include "engine/devices.h"

namespace ring {
namespace {

// One part in kFreeShare of the budget stays free: the first steps run without a memory plan, and a memory plan leaves
// gaps between tensors.
constexpr std::size_t kFreeShare = 25;

// Gives the rest of the budget, in whole chunks, to the staging memory through which offloaded states pass
// (optimizer.offload_staging_bytes: auto). The dry step was made with the minimum number of chunks.
void take_rest(const DryStep& step, ActivationFit& fit) {
  if (step.host_states <= step.optimizer_states || fit.peak > fit.budget) return;
  const std::size_t min = HostChunks::kMinRing, chunk = step.optimizer_states / min;
  const std::size_t full = fit.budget - fit.budget / kFreeShare;
  const std::size_t room = full - std::min(full, fit.peak);
  const std::size_t more = std::min((step.host_states + chunk - 1) / chunk - min, room / chunk);
  const auto ring = static_cast<std::size_t>(HostChunks::round_to_ring(narrow<std::int64_t>(min + more)));
  fit.staging = ring * chunk;
  fit.peak += (ring - min) * chunk;
}

// Finds plans, and checks each with a dry step, because the solver does not model gaps between tensors in memory.
class Fitting {
 public:
  Fitting(const Config& c, WorldSize world, std::size_t budget, const DeviceRates& rates, std::size_t host_room)
      : planner_(c, world, rates, host_room), budget_(budget), chooses_staging_(chooses_staging(c)) {}

  std::size_t policies() const { return planner_.count(); }
  ActivationFit uniform(std::size_t policy) const { return measured({planner_.uniform_plan(policy), 0}); }
  // Returns the fastest plan with the same policy for all blocks; nullopt if none fits.
  std::optional<ActivationFit> fastest_uniform() {
    std::optional<ActivationFit> fastest;
    for (std::size_t policy = 0; policy < policies(); ++policy)
      if (const ActivationFit fit = measured(planner_.same_for_all(policy));
          fits(fit) && (!fastest || fit.seconds < fastest->seconds))
        fastest = fit;
    return fastest;
  }
  bool fits(const ActivationFit& fit) const { return fit.peak <= budget_; }
  // For pipeline stages, which hold several micro-batches at a time. Returns the plan that fits and recomputes the
  // least, with the same policy for all blocks; nullopt if none fits. Sets `smallest` to a plan with a lower peak.
  std::optional<ActivationFit> first_uniform(ActivationFit& smallest) const {
    for (std::size_t policy = 1; policy < policies(); ++policy) {
      const ActivationFit fit = uniform(policy);
      if (fits(fit)) return fit;
      if (fit.peak < smallest.peak) smallest = fit;
    }
    return {};
  }

  // Returns the fastest plan; nullopt if none was found. While the solver's plan does not fit, because of gaps, reduces
  // the solver's budgets by the missing bytes and tries again.
  std::optional<ActivationFit> solved(bool segments) {
    ActivationBudget room{budget_, planner_.host_room()};
    for (int tries = 0; tries < 16; ++tries) {
      const auto solved = segments ? planner_.fastest_in_segments(room) : planner_.fastest_plan(room);
      if (!solved) return {};
      const ActivationFit fit = measured(*solved);
      if (fits(fit)) return fit;
      room.device -= std::min(room.device, std::max(fit.peak - budget_, room.device / 512));
      if (stayed_) room.host -= std::min(room.host, std::max(stayed_, room.host / 64));
    }
    return {};
  }

  // Returns the plan with the lowest device memory; nullopt if the solver finds none.
  std::optional<ActivationFit> min_memory(bool segments) {
    const auto solved = segments ? planner_.min_memory_in_segments() : planner_.min_memory_plan();
    if (!solved) return {};
    return measured(*solved);
  }

 private:
  ActivationFit measured(const SolvedPlan& solved) const {
    const DryStep step = planner_.dry_run(solved.plan);
    stayed_ = step.stayed;
    const double seconds = static_cast<double>(solved.nanoseconds) * 1e-9;
    ActivationFit fit{solved.plan, step.peak(), budget_, seconds, planner_.host_room(), step.host};
    if (chooses_staging_) take_rest(step, fit);
    return fit;
  }

  ActivationPlanner planner_;
  const std::size_t budget_;
  const bool chooses_staging_;
  mutable std::size_t stayed_ = 0;  // activation bytes of the newest plan that did not fit into host memory
};

// Memory that a plan does not include. On a GPU, libraries (cuBLAS, NCCL) take kLibraries bytes. On a host, the plan
// may use the fraction kOfHost; the rest is for files that are read and for everything else.
constexpr std::size_t kLibraries = std::size_t{3} << 29;
constexpr double kOfHost = 0.9;

// Returns this process's share of the device's memory: of all memory if `whole`, else only of the free memory.
std::size_t device_share(const Config& c, Mesh& mesh, bool whole) {
  if (const auto gpu = device_memory({backend_of(c.run.device), mesh.device().index})) {
    const std::size_t bytes = whole ? gpu->total : gpu->free;
    return bytes - std::min(bytes, kLibraries);
  }
  const std::vector<MemoryBound> bounds = memory_bounds();
  const MemoryBound& host = tightest_bound(bounds);
  const double bytes = kOfHost * static_cast<double>(whole ? host.total : host.available);
  return static_cast<std::size_t>(bytes) / static_cast<std::size_t>(sum_on_this_host(mesh.host(), 0).processes);
}

}  // namespace

std::string ActivationFit::text() const {
  std::string text = plan_text(plan);
  if (peak) text += str(": ", bytes_text(peak), " of ", bytes_text(budget));
  if (host) text += str(", ", bytes_text(host), " on the host");
  if (staging) text += str(", ", bytes_text(staging), " for states in transit");
  return text;
}

std::optional<ActivationFit> find_activation_fit(const Config& c, WorldSize world, std::size_t budget,
                                                 const DeviceRates& rates, ActivationFit* smallest_of_all,
                                                 std::optional<std::size_t> host_room) {
  const auto settings_room = static_cast<std::size_t>(c.train.activation_offload_bytes);
  const std::size_t min_room = c.train.activation_offload == Switch::on ? 1 : 0;  // 0 would mean no limit
  Fitting fitting(c, world, budget, rates, host_room ? std::max(*host_room, min_room) : settings_room);
  ActivationFit smallest = fitting.uniform(0);
  if (fitting.fits(smallest)) return smallest;
  const auto consider = [&](const std::optional<ActivationFit>& fit) {
    if (fit && fit->peak < smallest.peak) smallest = *fit;
  };
  if (c.parallel.pp > 1) {
    if (const auto plan = fitting.first_uniform(smallest)) return plan;
    if (smallest_of_all) *smallest_of_all = smallest;
    return {};
  }
  if (fitting.policies() > 1) {
    if (const auto plan = fitting.solved(false)) return plan;
    if (const auto plan = fitting.fastest_uniform()) return plan;  // it may have smaller gaps than mixed plans
    consider(fitting.uniform(fitting.policies() - 1));
    consider(fitting.min_memory(false));
  }
  if (fitting.fits(smallest)) return smallest;
  if (const auto plan = fitting.solved(true)) return plan;
  consider(fitting.min_memory(true));  // a dry step may take slightly less memory than the solver predicts
  if (fitting.fits(smallest)) return smallest;
  if (smallest_of_all) *smallest_of_all = smallest;
  return {};
}

bool can_fit(const Config& c, WorldSize world, std::size_t budget, const DeviceRates& rates) {
  Fitting fitting(c, world, budget, rates, static_cast<std::size_t>(c.train.activation_offload_bytes));
  if (fitting.fits(fitting.uniform(fitting.policies() - 1))) return true;
  if (c.parallel.pp > 1) return false;
  for (const bool segments : {false, true})
    if (const auto fit = fitting.min_memory(segments); fit && fitting.fits(*fit)) return true;
  return false;
}

std::size_t min_over_ranks(std::size_t own, Mesh& mesh) {
  double min = -static_cast<double>(own);
  all_reduce_host(mesh.host(), {&min, 1}, Reduce::max);
  return static_cast<std::size_t>(-min);
}

std::size_t memory_budget(const Config& c, Mesh& mesh) {
  const double asked = c.train.memory_budget;
  std::size_t own = static_cast<std::size_t>(asked);
  if (asked <= 1)
    own = static_cast<std::size_t>((asked > 0 ? asked : 1) * static_cast<double>(device_share(c, mesh, asked > 0)));
  return min_over_ranks(own, mesh);
}

}  // namespace ring
