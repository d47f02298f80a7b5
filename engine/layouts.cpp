#include "engine/layouts.h"

#include <algorithm>
#include <functional>
#include <span>
#include <tuple>
#include <utility>

#include "core/checked.h"
#include "core/joined.h"
#include "engine/devices.h"
#include "engine/layout_estimate.h"
#include "engine/scaled_step.h"

namespace ring {
namespace {

// Returns the ZeRO stages worth trying: all stages, or only stage 0 if there is a single replica.
std::vector<std::int64_t> zero_stages(int replicas) {
  if (replicas == 1) return {0};
  return {0, 1, 2, 3};
}

// Returns the fixed degree, or all divisors of the number of processes.
std::vector<std::int64_t> degrees(const std::optional<std::int64_t>& fixed, std::int64_t processes) {
  if (fixed) return {*fixed};
  std::vector<std::int64_t> all;
  for (std::int64_t n = 1; n <= processes; ++n)
    if (processes % n == 0) all.push_back(n);
  return all;
}

// Returns true if groups of `ranks` adjacent ranks share nodes evenly or fill whole nodes.
bool fits_nodes(std::int64_t ranks, const WorldSize& world) {
  return world.nodes() == 1 || world.per_node % ranks == 0 || ranks % world.per_node == 0;
}

// Returns true if a search on several nodes or with max_layouts considers the layout: the batch and the model can be
// divided, and ranks that communicate most are on the same node. Other layouts of one node are tried, so that their
// error can be shown.
bool is_promising(const PlanRequest& q, std::int64_t dp, std::int64_t cp, std::int64_t tp) {
  const WorldSize& world = q.world;
  const FixedDegrees& fixed = q.fixed;
  if ((world.nodes() == 1 && q.max_layouts == 0) || (fixed.dp && fixed.cp && fixed.tp)) return true;
  const std::vector<std::int64_t> slices = possible_slices(q.config.model.resolved());
  return q.config.train.batch_size % dp == 0 && q.config.model.context / cp >= tp &&
         std::ranges::count(slices, tp) > 0 && (fixed.tp || fits_nodes(tp, world)) &&
         (fixed.cp || fits_nodes(tp * cp, world));
}

// Returns true if the settings leave the cp schedule open and hybrid is possible: cp spans nodes, and the ranks of a
// node can exchange heads.
bool may_be_hybrid(const PlanRequest& q) {
  const ParallelConfig& p = q.config.parallel;
  return p.cp_schedule == ContextSchedule::automatic && p.cp_ranks_per_node > 0 && p.cp_ranks_per_node < p.cp &&
         q.config.train.sequence_chunk <= 0 && p.pp_slices == 1 &&
         supports_hybrid(q.config.model.resolved(), p.tp, p.cp_ranks_per_node);
}

// Returns all layouts with the fixed degrees, each with all ZeRO stages that save memory, and with hybrid if possible.
std::vector<PlanRequest> layouts_of(PlanRequest request) {
  ParallelConfig& given = request.config.parallel;
  if (std::ranges::count(given.chosen, "cp_schedule") > 0) given.cp_schedule = ContextSchedule::automatic;
  const FixedDegrees& fixed = request.fixed;
  const std::int64_t pp = given.pp, of_stage = request.world / pp;  // of_stage: ranks of each pipeline stage
  std::vector<PlanRequest> all;
  if (of_stage * pp != request.world) return all;
  for (const std::int64_t tp : degrees(fixed.tp, of_stage))
    for (const std::int64_t cp : degrees(fixed.cp, of_stage / tp)) {
      const std::int64_t dp = of_stage / (tp * cp);
      if (tp * cp * dp != of_stage || dp != fixed.dp.value_or(dp)) continue;
      if (!is_promising(request, dp, cp, tp)) continue;
      for (const std::int64_t zero : fixed.zero ? std::vector{*fixed.zero} : zero_stages(static_cast<int>(dp * cp))) {
        ParallelConfig& parallel = all.emplace_back(request).config.parallel;
        parallel.dp = dp;
        parallel.cp = cp;
        parallel.tp = tp;
        parallel.zero = zero;
        parallel.cp_ranks_per_node = ring_ranks_per_node(request, cp, tp);
        if (!may_be_hybrid(all.back())) continue;
        PlanRequest hybrid = all.back();
        hybrid.config.parallel.cp_schedule = ContextSchedule::hybrid;
        all.push_back(std::move(hybrid));
      }
    }
  return all;
}

// Returns variants of the layout with offloaded optimizer states; empty if the settings fix optimizer.offload.
std::vector<PlanRequest> with_states_on_host(const PlanRequest& q) {
  std::vector<PlanRequest> all;
  if (q.config.run.device != DeviceChoice::cuda || q.config.optimizer.offload != StateOffload::none) return all;
  for (const StateOffload offload : {StateOffload::states, StateOffload::all, StateOffload::weights})
    if (allows_offload(q.config, offload)) all.emplace_back(q).config.optimizer.offload = offload;
  return all;
}

// Returns the layout with one sequence of `thousands` x 1,024 tokens per replica.
PlanRequest with_context(PlanRequest q, std::int64_t thousands) {
  q.config.model.context = thousands * 1024;
  q.config.train.batch_size = q.config.parallel.dp;
  q.config.train.batch_sizes.clear();
  q.config.train.micro_batch = 1;
  return q;
}

// Lets activations use what `lasting` bytes (DryStep::host_lasting) leave of the host memory. Returns false if they
// leave nothing.
bool leave_host(PlanRequest& q, std::size_t lasting) {
  const std::int64_t left = q.host - narrow<std::int64_t>(lasting);
  std::int64_t& room = q.config.train.activation_offload_bytes;
  if (left > 0) room = std::min(room > 0 ? room : left, left);
  return left > 0;
}

// Returns true if a layout fits with its optimizer states stored as optimizer.offload says.
bool fits_with_states(PlanRequest q) {
  std::int64_t& chunk = q.config.train.sequence_chunk;
  if (chunk == kAutoSequenceChunk)
    return std::ranges::any_of(sequence_chunks(q.config), [&](std::int64_t tokens) {
      chunk = tokens;
      return fits_with_states(q);
    });
  const ScaledStep small = scaled_steps(q.config, q.world).back();
  q.config = small.config;
  q.world = small.world;
  if (q.config.train.mlp_chunk == kAutoMlpChunk) q.config.train.mlp_chunk = min_mlp_chunk(q);
  const bool lasts = q.config.optimizer.offload != StateOffload::none || !q.config.optimizer.groups.empty() ||
                     q.config.parallel.local_steps > 0;
  if (q.host > 0 && lasts) {
    const ActivationPlan plan = ActivationPlan::uniform(q.config.model.layers, Recompute::full);
    if (!leave_host(q, dry_step(q.config, q.world, plan).host_lasting())) return false;
  }
  return can_fit(q.config, q.world, q.budget, q.rates);
}

// Returns true if a sequence of `thousands` x 1,024 tokens per replica fits.
bool fits(const PlanRequest& layout, std::int64_t thousands) {
  if (layout.stopped && layout.stopped()) throw PlanStopped();
  const PlanRequest q = with_context(layout, thousands);
  try {
    return fits_with_states(q) || std::ranges::any_of(with_states_on_host(q), fits_with_states);
  } catch (const Error&) {  // the model has no such layout
    return false;
  }
}

// Returns the longest context that fits, in units of 1,024 tokens, to within 1/16. min_bytes: a context, in the same
// unit, that is known to fit.
std::int64_t longest_of(const PlanRequest& layout, std::int64_t min_bytes) {
  std::int64_t max = 2 * min_bytes;
  while (max <= (std::int64_t{1} << 20) && fits(layout, max)) max = 2 * (min_bytes = max);
  while (max - min_bytes > std::max<std::int64_t>(1, min_bytes / 16)) {
    const std::int64_t middle = min_bytes + (max - min_bytes) / 2;
    (fits(layout, middle) ? min_bytes : max) = middle;
  }
  return min_bytes;
}

// Tries a layout within the host memory, if its size is known.
LayoutResult within_host(PlanRequest q) {
  const std::int64_t dp = q.config.parallel.dp;
  LayoutResult tried = try_micro_batches(q, dp);
  const auto host = static_cast<std::size_t>(q.host);
  if (host == 0 || !tried.step || tried.step->host <= host) return tried;
  if (!leave_host(q, tried.step->host_lasting))
    return {.error = str("states and weights need ", bytes_text(tried.step->host_lasting),
                         " of host memory, but --host (by default train.activation_offload_bytes) is ",
                         bytes_text(host), ". Raise it")};
  return try_micro_batches(q, dp);
}

LayoutResult try_layout(const PlanRequest& q) {
  LayoutResult tried = within_host(q);
  if (tried.step || !tried.error.empty()) return tried;
  for (const PlanRequest& host : with_states_on_host(q)) {
    const LayoutResult moved = within_host(host);
    if (moved.step) return moved;
    if (moved.min_bytes > 0) tried.min_bytes = std::min(tried.min_bytes, moved.min_bytes);
  }
  return tried;
}

// Sorts by speed. Layouts whose times differ by less than 1/1000 are sorted by peak memory, because predictions are not
// more precise.
void sort_by_speed_and_room(std::vector<PlannedStep>& all) {
  constexpr double kSameSpeed = 1.001;
  std::ranges::stable_sort(all, {}, &PlannedStep::seconds);
  for (auto first = all.begin(); first != all.end();) {
    const double max = kSameSpeed * first->seconds();
    const auto end = std::find_if(first, all.end(), [=](const PlannedStep& p) { return p.seconds() > max; });
    std::stable_sort(first, end, [](const PlannedStep& a, const PlannedStep& b) { return a.peak < b.peak; });
    first = end;
  }
}

std::string text_of(const PlanRequest& q) { return q.world == 1 ? "1 process" : plan_of(q.config, q.world).text(); }

// Layouts that share a sequence most come first, since the estimates found none that fits.
void sort_by_room(std::span<PlanRequest> layouts) {
  std::ranges::stable_sort(layouts, std::greater{}, [](const PlanRequest& q) {
    const ParallelConfig& p = q.config.parallel;
    return std::tuple(p.cp * p.tp, p.zero, p.dp);
  });
}

// Returns why layouts_of() is empty.
std::string no_layout(const PlanRequest& q) {
  if (q.fixed.any())
    return str("no layout of ", q.world, " processes has the given parallel degrees ", q.fixed.text(),
               ". Use a number of processes that is a multiple of their product, or leave some degrees open");
  return str(
      "no layout of ", q.world, " processes on ", q.world.nodes(),
      " nodes divides train.batch_size: ", q.config.train.batch_size,
      " among replicas, model.context: ", q.config.model.context,
      " among ranks of cp and the model's heads among ranks of tp, with groups that fill nodes. Use a batch size "
      "that is a multiple of a divisor of the number of processes, a longer context, or other nodes");
}

}  // namespace

std::int64_t ring_ranks_per_node(const PlanRequest& q, std::int64_t cp, std::int64_t tp) {
  const ParallelConfig& c = q.config.parallel;
  const std::int64_t here = q.world.per_node / tp;
  const bool has_levels = c.cp_schedule != ContextSchedule::gather && c.cp_schedule != ContextSchedule::all_to_all;
  if (c.cp_ranks_per_node > 0 || !has_levels) return c.cp_ranks_per_node;
  if (q.world.nodes() == 1) return c.cp_schedule == ContextSchedule::hybrid && cp > 1 ? cp : 0;
  return here > 1 && cp > here && cp % here == 0 && q.world.per_node % tp == 0 ? here : 0;
}

Layouts try_layouts(const PlanRequest& request, const PlanProgress& progress) {
  const std::size_t max = request.max_layouts;
  Layouts all;
  std::vector<PlanRequest> layouts = layouts_of(request);
  if (request.max_layouts > 0) sort_by_estimate(layouts);
  all.count = layouts.size();
  if (layouts.empty()) all.error = no_layout(request);
  bool by_room = false;
  for (std::size_t i = 0; i < layouts.size(); ++i) try {
      const bool many = max > 0 && all.fit.size() + all.too_large.size() >= 3 * max;
      if (max > 0 && (all.fit.size() >= max || (many && !all.fit.empty()))) {
        all.slower = layouts.size() - all.tried;
        all.count = all.tried;
        break;
      }
      if (many && !std::exchange(by_room, true)) sort_by_room(std::span(layouts).subspan(i));
      const PlanRequest& q = layouts[i];
      const auto best = std::ranges::min_element(all.fit, {}, &PlannedStep::seconds);
      if (progress) progress(all.tried, all.count, best == all.fit.end() ? nullptr : &*best);
      LayoutResult tried = try_layout(q);
      if (tried.step) all.fit.push_back(std::move(*tried.step));
      if (tried.min_bytes > 0) all.too_large.push_back({text_of(q), tried.min_bytes});
      if (all.error.empty()) all.error = tried.error;
      ++all.tried;
    } catch (const PlanStopped&) {
      break;
    }
  sort_by_speed_and_room(all.fit);
  std::ranges::stable_sort(all.too_large, {}, &LayoutShortage::min_bytes);
  return all;
}

std::string FixedDegrees::text() const {
  std::vector<std::string> words;
  for (const auto& [name, degree] : {std::pair{"dp", dp}, {"cp", cp}, {"tp", tp}, {"zero", zero}})
    if (degree) words.push_back(str(name, ' ', *degree));
  return joined(words, ", ");
}

std::vector<PlannedStep> plan_layouts(const PlanRequest& q) { return try_layouts(q).fit; }

// Tries layouts with the largest cp * tp first, because fewer devices per sequence do not allow a longer context. For
// most layouts a single check, of a context 1/16 longer than the longest so far, shows that they are no better.
LongestContext longest_context(const PlanRequest& request, const PlanProgress& progress) {
  const auto sharing = [](const PlanRequest& q) { return q.config.parallel.cp * q.config.parallel.tp; };
  std::vector<PlanRequest> layouts = layouts_of(request);
  std::ranges::stable_sort(layouts, std::greater{}, [&](const PlanRequest& q) {
    return std::tuple(sharing(q), q.config.parallel.zero, q.config.parallel.cp);
  });
  std::int64_t longest = 0, shared = 0;
  LongestContext found;
  for (const PlanRequest& q : layouts) {
    if (longest > 0 && sharing(q) < shared) break;
    if (progress) progress(static_cast<std::size_t>(&q - layouts.data()), layouts.size(), nullptr);
    shared = sharing(q);
    const std::int64_t more = longest + std::max<std::int64_t>(1, longest / 16);
    if (!fits(q, more)) continue;
    longest = longest_of(q, more);
    found = {longest * 1024, with_context(q, longest)};
    const ParallelConfig& p = q.config.parallel;
    found.request.fixed = {p.dp, p.cp, p.tp, p.zero};
  }
  return found;
}

}  // namespace ring
