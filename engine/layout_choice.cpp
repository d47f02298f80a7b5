#include "engine/layout_choice.h"

#include <algorithm>
#include <cstdio>
#include <optional>
#include <string>
#include <vector>

#include "comm/leader.h"
#include "core/checked.h"
#include "core/counted.h"
#include "core/log.h"
#include "engine/activation_fit.h"
#include "engine/devices.h"
#include "engine/layouts.h"
#include "engine/origin.h"
#include "engine/rates.h"
#include "engine/resolve.h"
#include "job/worker_status.h"
#include "parallel/misfit.h"

namespace ring {
namespace {

constexpr std::size_t kPlannedLayouts = 8;  // as PlanRequest::max_layouts

// Rank 0's choice. Trivially copyable, so that it can be broadcast.
struct ChosenLayout {
  std::int64_t dp = 1, cp = 1, tp = 1, zero = 0;
  ContextSchedule schedule = ContextSchedule::automatic;
  StateOffload offload = StateOffload::none;
  bool fits = true;  // false if only a different number of processes has a layout
};

bool was_chosen(const ParallelConfig& c, const char* key) { return std::ranges::count(c.chosen, key) > 0; }

std::vector<std::string> open_keys(const FixedDegrees& fixed) {
  std::vector<std::string> keys;
  for (const auto& [key, degree] :
       {std::pair{"dp", fixed.dp}, {"cp", fixed.cp}, {"tp", fixed.tp}, {"zero", fixed.zero}})
    if (!degree) keys.emplace_back(key);
  return keys;
}

std::string yaml_of(const ParallelConfig& c) {
  const char* const schedule = c.cp_schedule == ContextSchedule::hybrid ? ", cp_schedule: hybrid" : "";
  return str("{dp: ", c.dp, ", cp: ", c.cp, ", tp: ", c.tp, ", zero: ", c.zero, schedule, "}");
}

bool agree(const FixedDegrees& fixed, const ParallelConfig& c) {
  return fixed.dp.value_or(c.dp) == c.dp && fixed.cp.value_or(c.cp) == c.cp && fixed.tp.value_or(c.tp) == c.tp &&
         fixed.zero.value_or(c.zero) == c.zero;
}

// Returns the layout of the run that is resumed, if these processes can have it.
std::optional<ChosenLayout> layout_of_run(const Config& run, const FixedDegrees& fixed, StateOffload given, int world) {
  const ParallelConfig& c = run.parallel;
  const std::string before = yaml_of(c);
  if (c.dp > 0 && c.dp * c.cp * c.tp == world && agree(fixed, c)) {
    log::info("parallel: auto keeps the layout of the run: ", before);
    return ChosenLayout{c.dp,   c.cp,          c.tp,
                        c.zero, c.cp_schedule, given == StateOffload::none ? run.optimizer.offload : given};
  }
  log::info("parallel: auto chooses a new layout: the run had ", before, ", which is not a layout of ",
            counted(world, "process"), fixed.any() ? " with " + fixed.text() : "");
  return {};
}

PlanRequest request_of(const Config& given, const FixedDegrees& fixed, WorldSize world, Backend backend,
                       std::size_t budget) {
  Config c = given;
  c.parallel.dp = c.parallel.zero = 0;
  c.parallel.cp = c.parallel.tp = 1;
  const std::int64_t vocabulary = c.model.vocab_size ? c.model.vocab_size : open_corpora(c.data).vocab_size;
  PlanRequest q{.config = resolve_config(c, vocabulary, 1, backend, false), .world = world, .budget = budget};
  q.rates = rates_named("", q.config);
  q.fixed = fixed;
  q.max_layouts = kPlannedLayouts;
  return q;
}

void warn_of_unknown_links(const PlanRequest& q) {
  const char* const measure = "Measure it with `ringmaster launch .. -- bench links --out FILE` and set run.rates=FILE";
  if (q.world > 1 && q.rates.collective_bytes_per_second == 0)
    log::warn("parallel: auto counts no time for messages, because the rates of ", q.rates.device,
              " contain no link between processes. ", measure);
  else if (q.world.nodes() > 1 && q.rates.node_link_bytes_per_second == 0)
    log::warn("parallel: auto treats the links between nodes like those inside a node, because the rates of ",
              q.rates.device, " do not contain their rate. ", measure);
}

std::string speed_text(const PlannedStep& p) {
  char text[64];
  std::snprintf(text, sizeof text, "%.3g tokens/s", p.tokens_per_second);
  return text;
}

void log_choice(const PlanRequest& q, const Layouts& all) {
  const PlannedStep& best = all.fit.front();
  const std::string states = best.config.optimizer.offload == StateOffload::none ? "" : ", states on the host";
  std::string others =
      all.fit.size() > 1 ? str("; next ", yaml_of(all.fit[1].config.parallel), " with ", speed_text(all.fit[1])) : "";
  if (!all.too_large.empty()) others += str("; ", counted(all.too_large.size(), "layout"), " did not fit");
  log::info("parallel: ", yaml_of(best.config.parallel), " is the fastest of ", counted(all.tried, "layout"),
            " that auto planned for ", counted(q.world, "process"),
            q.fixed.any() ? str(" with the given ", q.fixed.text()) : "", ": ", speed_text(best), " and ",
            bytes_text(best.peak), " of ", bytes_text(q.budget), " predicted with the rates of ", q.rates.device,
            ", mostly ", best.limit, states, others);
}

// Tells the launcher that a different number of processes may have a layout, and throws WorldSizeError.
[[noreturn]] void fail_on_all_ranks(const std::string& why) {
  own_status().misfit = 1;
  throw WorldSizeError(why);
}

// Throws WorldSizeError if no layout of these processes is possible or fits.
ChosenLayout plan_layout(const PlanRequest& q) {
  warn_of_unknown_links(q);
  const Layouts all = try_layouts(q);
  if (all.fit.empty() && !all.too_large.empty())
    throw WorldSizeError(
        str("parallel: auto found no layout of ", counted(q.world, "process"), " that fits into ", bytes_text(q.budget),
            ": ", all.too_large.front().layout, " needs at least ", bytes_text(all.too_large.front().min_bytes),
            ". Use more processes, a shorter model.context or a smaller model (ringmaster plan shows what fits)"));
  if (all.fit.empty()) throw WorldSizeError(str("parallel: auto: ", all.error));
  log_choice(q, all);
  const ParallelConfig& c = all.fit.front().config.parallel;
  return {c.dp, c.cp, c.tp, c.zero, c.cp_schedule, all.fit.front().config.optimizer.offload};
}

// Stores the chosen degrees and schedule, and the names of the keys that were chosen.
void store_choice(ParallelConfig& c, const ChosenLayout& chosen, const FixedDegrees& fixed) {
  const bool open = c.cp_schedule == ContextSchedule::automatic || was_chosen(c, "cp_schedule");
  const bool hybrid = chosen.schedule == ContextSchedule::hybrid;
  c.dp = chosen.dp;
  c.cp = chosen.cp;
  c.tp = chosen.tp;
  c.zero = chosen.zero;
  c.chosen = open_keys(fixed);
  if (!open) return;
  c.cp_schedule = hybrid ? ContextSchedule::hybrid : ContextSchedule::automatic;
  if (hybrid) c.chosen.emplace_back("cp_schedule");
}

}  // namespace

FixedDegrees given_degrees(const ParallelConfig& c) {
  const auto given = [&](const char* key, std::int64_t degree, std::int64_t open) {
    return degree == open || degree == kAutoDegree || was_chosen(c, key) ? std::nullopt : std::optional(degree);
  };
  FixedDegrees fixed{given("dp", c.dp, 0), given("cp", c.cp, 0), given("tp", c.tp, kAutoDegree),
                     given("zero", c.zero, kAutoDegree)};
  if (c.cp == 0) fixed.dp = std::max<std::int64_t>(1, c.dp);  // cp gets the remaining processes
  return fixed;
}

void choose_layout(Config& c, Mesh& mesh, bool fresh) {
  if (!c.parallel.is_open(mesh.world())) return;
  const FixedDegrees fixed = given_degrees(c.parallel);
  if (was_chosen(c.parallel, "compress")) c.parallel.compress = GradientCompression::automatic;  // chosen again
  if (was_chosen(c.parallel, "offload")) c.optimizer.offload = StateOffload::none;
  const StateOffload given_offload = c.optimizer.offload;
  const WorldSize world{mesh.world(), ranks_per_node(mesh.nodes_along(kAxisBeforeChoice))};
  const std::size_t budget = memory_budget(c, mesh);
  std::string why;  // on rank 0: why no layout fits
  const ChosenLayout chosen = broadcast_from_rank0(mesh.host(), [&]() -> ChosenLayout {
    Config asked = c;
    if (const auto run = settings_of_resumed(c, fresh)) {
      if (const auto kept = layout_of_run(*run, fixed, c.optimizer.offload, world)) return *kept;
      // A run keeps its chunks.
      if (asked.train.mlp_chunk == kAutoMlpChunk) asked.train.mlp_chunk = run->train.mlp_chunk;
      if (asked.train.sequence_chunk == kAutoSequenceChunk) asked.train.sequence_chunk = run->train.sequence_chunk;
    }
    try {
      return plan_layout(request_of(asked, fixed, world, mesh.device().backend, budget));
    } catch (const WorldSizeError& e) {
      why = e.what();
      return {.fits = false};
    }
  });
  if (!chosen.fits) fail_on_all_ranks(broadcast_from_rank0(mesh.host(), [&] { return why; }));
  store_choice(c.parallel, chosen, fixed);
  if (chosen.offload != given_offload) c.parallel.chosen.emplace_back("offload");
  c.optimizer.offload = chosen.offload;
  if (c.train.micro_batch == 0) c.train.micro_batch = kAutoMicroBatch;
  mesh.set_layout(
      mesh_layout(plan_degrees(c.parallel, c.model.resolved(), batch_size(c), mesh.world()), mesh.device()));
}

}  // namespace ring
