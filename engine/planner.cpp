#include "engine/planner.h"

#include <algorithm>
#include <array>
#include <functional>
#include <map>
#include <tuple>

#include "core/checked.h"
#include "core/counted.h"
#include "engine/devices.h"
#include "model/attention_schedule.h"
#include "model/flops.h"

namespace ring {
namespace {

// Seconds of waiting that are not hidden by computation.
struct Exposed {
  double messages = 0;  // waiting for messages to other ranks
  double copies = 0;    // waiting for copies to and from the host
  double all() const { return messages + copies; }
};

// Seconds of a step's kernels, by what limits a kernel: GEMM FLOPs, attention FLOPs, memory traffic or launch time.
struct Spent {
  double products = 0, attention = 0, memory = 0, calls = 0;
  double all() const { return products + attention + memory + calls; }

  void add(const DeviceRates& r, Precision precision, const DryCall& c) {
    const double s = seconds_of(r, precision, c.slot, c.cost);
    if (s <= r.call_seconds)
      calls += s;
    else if (c.slot.starts_with("attention"))
      attention += s;
    else if (s > c.cost.bytes / r.bytes_per_second)
      products += s;
    else
      memory += s;
  }
  const char* largest_part(const Exposed& e) const {
    const std::array<std::pair<double, const char*>, 6> kinds = {{{products, "matrix products"},
                                                                  {attention, "attention"},
                                                                  {memory, "memory traffic"},
                                                                  {calls, "starting kernels"},
                                                                  {e.messages, "messages"},
                                                                  {e.copies, "copies to the host"}}};
    return std::ranges::max_element(kinds)->second;
  }
};

using Pass = std::pair<ScopeId, ScopePass>;

std::map<Pass, double> seconds_of_passes(const DryStep& step, const DeviceRates& rates, Precision precision) {
  std::map<Pass, double> computing;
  for (const DryCall& c : step.calls) computing[{c.part, c.pass}] += seconds_of(rates, precision, c.slot, c.cost);
  return computing;
}

// Returns the seconds that a step waits for messages. Exchanges (keys, values, rows of shards) overlap with the part
// that needs them. Data-parallel transfers of gradients and weights overlap with all computation. Tensor-parallel
// collectives do not overlap.
double exposed_messages(const DryStep& step, std::map<Pass, double> computing, const DeviceRates& rates) {
  std::map<Pass, double> beside;
  double all = 0, waited = 0, data = 0;
  for (const auto& [pass, s] : computing) all += s;
  for (const DryTransfer& t : step.transfers) {
    const double s = seconds_of(rates, t.transfer);
    if (t.transfer.operation == "exchange")
      beside[{t.part, t.pass}] += s;
    else if (t.transfer.group == "tp")
      waited += s;
    else
      data += s;
  }
  for (const auto& [pass, s] : beside) waited += std::max(0.0, s - computing[pass]);
  return waited + std::max(0.0, data - all);
}

// Returns the seconds that the update waits for offloaded states, which are copied in both directions at once. Chunks
// for which the device has room are copied before the update, while the step computes and the link is free.
double exposed_states(const DryStep& step, double computing, double update, const DeviceRates& rates) {
  const double rate = rates.host_bytes_per_second;
  const double ring = std::min(static_cast<double>(step.optimizer_states), rate * std::max(0.0, computing));
  return step.host_states == 0 ? 0 : std::max(0.0, (static_cast<double>(step.host_states) - ring) / rate - update);
}

// Returns the seconds that parts wait for offloaded activations. Activations are copied to the host during the next
// part's forward, and back during the next part's backward.
double exposed_copies(const DryStep& step, std::map<Pass, double> computing, const DeviceRates& rates, int times) {
  if (rates.host_bytes_per_second == 0) return 0;
  double waited = 0, update = 0, rest = 0;
  for (std::size_t i = 0; i + 1 < step.parts.size(); ++i) {
    const double moving = times * static_cast<double>(step.parts[i].host) / rates.host_bytes_per_second;
    rest -= moving;
    for (const ScopePass pass : {ScopePass::forward, ScopePass::backward})
      waited += std::max(0.0, moving - computing[{step.parts[i + 1].part, pass}]);
  }
  for (const auto& [pass, s] : computing) (pass.first.kind == scopes::optimizer ? update : rest) += s;
  return waited + exposed_states(step, rest, update, rates);
}

// Returns the powers of two that divide the share, and the share itself.
std::vector<std::int64_t> micro_batches(std::int64_t share) {
  std::vector<std::int64_t> all;
  for (std::int64_t n = 1; n <= share; n *= 2)
    if (share % n == 0) all.push_back(n);
  if (all.back() != share) all.push_back(share);
  return all;
}

// Plans the request with its own mlp_chunk. Returns nullopt if it does not fit; `min_bytes` is then lowered to the
// budget that would suffice, or set to it if it was 0.
std::optional<PlannedStep> plan_one(const PlanRequest& q, std::size_t& min_bytes) {
  if (q.stopped && q.stopped()) throw PlanStopped();
  ActivationFit smallest;
  const std::optional<ActivationFit> fit = find_activation_fit(q.config, q.world, q.budget, q.rates, &smallest);
  if (fit) return predict_step(q, *fit);
  min_bytes = min_bytes == 0 ? smallest.peak : std::min(min_bytes, smallest.peak);
  return {};
}

constexpr std::int64_t kMaxChunks = 32;

// Returns 0 (all tokens), then decreasing chunk sizes below the number of a rank's tokens. Chunks below a few thousand
// tokens make GEMMs less efficient. Many chunks of a long sequence save no more memory than a few chunks, and take long
// to plan.
std::vector<std::int64_t> mlp_chunks(const PlanRequest& q) {
  const ParallelPlan layout = plan_of(q.config, q.world);
  std::vector<std::int64_t> chunks = {0};
  const std::int64_t all =
      layout.in_chunks ? layout.cp_layout.tokens_of_rank(0) : layout.micro_batch * q.config.model.context / layout.cp;
  for (const std::int64_t tokens : {32768, 16384, 8192, 4096})
    if (tokens < all && (chunks.size() == 1 || all <= kMaxChunks * tokens)) chunks.push_back(tokens);
  return chunks;
}

PlanRequest with_mlp_chunk(PlanRequest q, std::int64_t tokens) {
  q.config.train.mlp_chunk = tokens;
  return q;
}

LayoutResult try_step(const PlanRequest& q) {
  LayoutResult tried;
  try {
    tried.step = plan_step(q, &tried.min_bytes);
  } catch (const Error& e) {
    tried.error = e.what();
  }
  return tried;
}

}  // namespace

namespace {

// Returns the rank whose attention keeps the most pairs. With contiguous chunks of a causal sequence this is the rank
// with the last chunk, for which all other ranks wait.
int busiest_rank(const ParallelPlan& p) {
  const bool contiguous = p.cp > 1 && p.cp_layout.chunks(0).size() == 1;  // with zigzag, each rank has two chunks
  return contiguous && p.config.cp_schedule != ContextSchedule::all_to_all ? (p.cp - 1) * p.tp : 0;
}

// Returns the dry step that determines the time: that of the busiest rank, with the attention settings at the end of
// training. `largest` determines the memory: it has the largest attention settings that occur during training.
DryStep timed_step(const PlannedStep& p, const DryStep& largest) {
  const int rank = busiest_rank(plan_of(p.config, p.world));
  if (attention_change_points(p.config.model).empty() && rank == 0) return largest;
  Config last = p.config;
  last.model = with_attention_at(last.model, kAfterAllTokens);
  return dry_step(last, p.world, p.activations.plan, rank);
}

}  // namespace

PlannedStep predict_step(const PlanRequest& q, const ActivationFit& activations) {
  PlannedStep p{.config = q.config, .activations = activations};
  const ParallelPlan layout = plan_of(q.config, q.world);
  if (const std::size_t staging = p.activations.staging)
    p.config.optimizer.offload_staging_bytes = narrow<std::int64_t>(staging);
  const DryStep largest = dry_step(p.config, q.world, p.activations.plan);
  p.world = q.world;
  p.lasting = largest.lasting;
  p.parts = largest.parts;
  p.weights = largest.weights;
  p.gradients = largest.gradients;
  p.optimizer_states = largest.optimizer_states;
  p.weight_buffers = largest.weight_buffers;
  p.gradient_buffers = largest.gradient_buffers;
  p.inside_step = largest.plan.bytes;
  p.peak = largest.peak();
  p.host = largest.host + largest.host_keys + largest.host_states;
  p.host_states = largest.host_states;
  const DryStep step = timed_step(p, largest);
  Spent spent;
  const Precision precision = precision_of(q.config);
  for (const DryCall& c : step.calls) spent.add(q.rates, precision, c);
  p.compute_seconds = spent.all();
  p.attention_seconds = spent.attention;
  const std::map<Pass, double> computing = seconds_of_passes(step, q.rates, precision);
  const Exposed exposed{exposed_messages(step, computing, q.rates),
                        exposed_copies(step, computing, q.rates, layout.forwards())};
  p.exposed_seconds = exposed.all();
  const double tokens = static_cast<double>(q.config.train.batch_size * q.config.model.context);
  p.tokens_per_second = tokens / p.seconds();
  p.mfu = p.tokens_per_second * flops_per_token(with_attention_at(q.config.model, kAfterAllTokens)) /
          (q.rates.peak_flops * q.world);
  p.layout = q.world == 1 ? "1 process" : layout.text();
  p.limit = spent.largest_part(exposed);
  return p;
}

std::optional<PlannedStep> plan_step(const PlanRequest& q, std::size_t* min_bytes) {
  std::size_t needed = 0;
  std::optional<PlannedStep> best;
  const bool chooses = q.config.train.mlp_chunk == kAutoMlpChunk;
  for (const std::int64_t tokens : chooses ? mlp_chunks(q) : std::vector{q.config.train.mlp_chunk}) {
    const std::optional<PlannedStep> step = plan_one(with_mlp_chunk(q, tokens), needed);
    if (!step) continue;
    if (!best || step->seconds() < best->seconds()) best = step;
    // With this chunk size nothing is recomputed or offloaded, so smaller chunks cannot be faster.
    if (step->activations.seconds == 0) break;
  }
  if (min_bytes && !best) *min_bytes = needed;
  return best;
}

// Goes up in size: the first micro-batch that does not fit ends the search.
LayoutResult try_micro_batches(PlanRequest q, std::int64_t dp) {
  if (q.config.train.micro_batch > 0 || q.config.train.batch_size % dp) return try_step(q);
  LayoutResult best;
  for (const std::int64_t n : micro_batches(q.config.train.batch_size / dp)) {
    q.config.train.micro_batch = n;
    const LayoutResult tried = try_step(q);
    if (!tried.step) return best.step ? best : tried;
    if (!best.step || tried.step->seconds() < best.step->seconds()) best = tried;
  }
  return best;
}

StepSizes fit_micro_batch(const PlanRequest& request) {
  PlanRequest q = request;
  q.config.train.micro_batch = 1;
  const ParallelPlan layout = plan_degrees(q.config.parallel, q.config.model, batch_size(q.config), q.world);
  q.config.train.micro_batch = 0;
  const std::optional<PlannedStep> best = try_micro_batches(q, layout.dp).step;
  if (!best)
    fail("train.micro_batch: auto (--fit): not even one sequence of ", q.config.model.context,
         " tokens at a time fits into ", bytes_text(q.budget),
         ". Lower model.context, or share the model or its sequences among more processes (ringmaster plan shows how)");
  return {best->config.train.micro_batch, best->config.train.mlp_chunk};
}

std::int64_t fit_mlp_chunk(const PlanRequest& q) {
  const std::optional<PlannedStep> best = plan_step(q);
  return best ? best->config.train.mlp_chunk : mlp_chunks(q).back();
}

std::int64_t min_mlp_chunk(const PlanRequest& q) { return mlp_chunks(q).back(); }

}  // namespace ring
