#include "engine/planner.h"

#include <algorithm>
#include <cmath>

#include "core/checked.h"
#include "core/counted.h"
#include "engine/devices.h"
#include "engine/scaled_step.h"
#include "engine/step_time.h"
#include "model/attention_schedule.h"
#include "model/flops.h"
#include "model/scopes.h"
#include "parallel/stages.h"

namespace ring {
namespace {

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
  const ScaledStep largest = scaled_steps(q.config, q.world).back();
  const std::optional<ActivationFit> fit =
      find_activation_fit(largest.config, largest.world, q.budget, q.rates, &smallest);
  if (fit) return predict_step(q, *fit);
  min_bytes = min_bytes == 0 ? smallest.peak : std::min(min_bytes, smallest.peak);
  return {};
}

constexpr std::int64_t kMaxChunks = 32;

// Limits of the chunk length that train.sequence_chunk: auto chooses. Larger chunks gain nothing, and small ones make
// attention and GEMMs less efficient.
constexpr std::int64_t kMaxSequenceChunk = std::int64_t{1} << 20, kMinSequenceChunk = 4096;

// Returns 0 (all tokens), then decreasing chunk sizes below the number of a rank's tokens. Chunks below a few thousand
// tokens make GEMMs less efficient. Many chunks of a long sequence save no more memory than a few chunks, and take long
// to plan.
std::vector<std::int64_t> mlp_chunks(const PlanRequest& q) {
  const ParallelPlan layout = plan_of(q.config, q.world);
  std::vector<std::int64_t> chunks = {0};
  const std::int64_t all =
      (layout.in_chunks ? layout.cp_layout.tokens_of_rank(0) : layout.micro_batch * q.config.model.context) / layout.cp;
  for (const std::int64_t tokens : {32768, 16384, 8192, 4096})
    if (tokens < all && (chunks.size() == 1 || all <= kMaxChunks * tokens)) chunks.push_back(tokens);
  return chunks;
}

PlanRequest with_mlp_chunk(PlanRequest q, std::int64_t tokens) {
  q.config.train.mlp_chunk = tokens;
  return q;
}

PlanRequest with_sequence_chunk(PlanRequest q, std::int64_t tokens) {
  q.config.train.sequence_chunk = tokens;
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

// Returns true if the step fits with this many tokens of a sequence at a time; nullopt if the layout is invalid.
std::optional<bool> fits_in_chunks(const PlanRequest& q, std::int64_t tokens) {
  const LayoutResult tried = try_step(with_sequence_chunk(q, tokens));
  if (!tried.error.empty()) return {};
  return tried.step.has_value();
}

}  // namespace

namespace {

// Returns the rank whose attention keeps the most pairs. With contiguous chunks of a causal sequence this is the rank
// with the last chunk, for which all other ranks wait.
int busiest_rank(const ParallelPlan& p) {
  const bool contiguous = p.cp > 1 && p.cp_layout.kind() == ContextLayoutKind::contiguous;
  return contiguous && p.config.cp_schedule != ContextSchedule::all_to_all ? (p.cp - 1) * p.tp : 0;
}

// Returns the dry step that determines the time: a step of a busiest rank, with the attention settings at the end of
// training. `largest` determines the memory: it has the largest attention settings that occur during training.
DryStep timed_step(const Config& c, WorldSize world, const ActivationPlan& plan, const DryStep& largest, int rank) {
  if (attention_change_points(c.model).empty() && rank == 0) return largest;
  Config last = c;
  last.model = with_attention_at(last.model, kAfterAllTokens);
  return dry_step(last, world, plan, rank);
}

void set_memory(PlannedStep& p, const DryStep& largest) {
  p.lasting = largest.lasting;
  p.parts = largest.parts;
  p.weights = largest.weights;
  p.gradients = largest.gradients;
  p.optimizer_states = largest.optimizer_states;
  p.weight_buffers = largest.weight_buffers;
  p.gradient_buffers = largest.gradient_buffers;
  p.inside_step = largest.plan.bytes;
  p.peak = largest.peak();
  p.host_lasting = largest.host_lasting();
  p.host = largest.host + largest.host_keys + p.host_lasting;
}

void set_rates(PlannedStep& p, const PlanRequest& q, const ParallelPlan& layout) {
  const double tokens = static_cast<double>(q.config.train.batch_size * q.config.model.context);
  p.tokens_per_second = tokens / p.seconds();
  p.mfu = p.tokens_per_second * flops_per_token(with_attention_at(q.config.model, kAfterAllTokens)) /
          (q.rates.peak_flops * q.world);
  p.layout = q.world == 1 ? "1 process" : layout.text();
}

// Removes the messages between stages from the step. Returns the seconds that the longest one takes.
double take_stage_messages(DryStep& step, const DeviceRates& rates) {
  double seconds = 0;
  std::erase_if(step.transfers, [&](const DryTransfer& t) {
    const bool between = t.transfer.group == "pp" && t.transfer.operation == "exchange";
    if (between) seconds = std::max(seconds, seconds_of(rates, t.transfer));
    return between;
  });
  return seconds;
}

// Adds the kernels of a stage's blocks, and of its embedding or head.
void add_costs(BlockCosts& costs, const StepTime& time) {
  for (std::size_t i = 0; i < costs.blocks.size(); ++i)
    costs.blocks[i] += time.seconds_of_part(block_scope(narrow<std::int64_t>(i)));
  costs.embedding += time.seconds_of_part({scopes::embedding});
  costs.head += time.seconds_of_part({scopes::final_norm}) + time.seconds_of_part({scopes::loss_head});
}

// Returns the number of blocks per part in the division with the best predicted times, if its slowest stage takes
// noticeably less time than that of the current division; otherwise empty.
std::vector<std::int64_t> find_better_division(const BlockCosts& costs, const std::vector<BlockRange>& now,
                                               const PipelineShape& shape) {
  constexpr double kNoticeable = 0.99;
  const auto slowest = [&](const std::vector<BlockRange>& parts) {
    std::vector<double> seconds(static_cast<std::size_t>(shape.stages));
    for (int part = 0; part < shape.all_parts(); ++part)
      seconds[static_cast<std::size_t>(shape.stage_of(part))] += cost_of(costs, parts[static_cast<std::size_t>(part)]);
    return std::ranges::max(seconds);
  };
  const std::vector<BlockRange> best = divide_blocks(costs, shape.stages, shape.parts);
  std::vector<std::int64_t> division;
  if (slowest(best) > kNoticeable * slowest(now)) return division;
  for (const BlockRange& part : best) division.push_back(part.end - part.first);
  return division;
}

// Returns the seconds of a step. busy: seconds that each stage needs without waiting for others. message: seconds of
// one message between stages. Assumes that backwards take twice as long as forwards.
double seconds_of_stages(const PipelineShape& shape, PipelineOrder order, const std::vector<double>& busy,
                         double message) {
  constexpr double kForward = 1e6;  // ticks of the slowest stage's forward
  const double slowest = std::ranges::max(busy), tick = slowest / (3 * kForward * shape.parts * shape.units());
  std::vector<PipelineTicks> ticks;
  for (const double seconds : busy) {
    const std::int64_t forward = std::llround(kForward * seconds / slowest);
    ticks.push_back({forward, 2 * forward, std::llround(message / tick)});
  }
  return tick * static_cast<double>(simulate_transfers(shape, order, ticks));
}

// Sets the part of the step's time that depends on the order of the stages' actions.
void set_waits_of_stages(PlannedStep& p, const PipelineShape& shape, const std::vector<double>& busy) {
  const auto waits = [&](PipelineOrder order, double seconds) {
    return std::max(0.0, 1 - seconds_of_stages(shape, order, busy, 0) / seconds);
  };
  const auto seconds = [&](PipelineOrder order) {
    return seconds_of_stages(shape, order, busy, p.stage_message_seconds);
  };
  const PipelineOrder order = resolved_order(p.config.parallel.pp_order, shape.parts);
  constexpr PipelineOrder eager = PipelineOrder::eager_1f1b;
  p.exposed_seconds = seconds(order) - p.compute_seconds;
  p.message_waits = waits(order, p.seconds());
  if (shape.parts == 1 && order != eager) p.eager_message_waits = waits(eager, seconds(eager));
}

// Returns true if all stages fit into memory with this parallel.pp_division and the same activations.
bool fits_with_division(const PlannedStep& p, const PlanRequest& q, const std::vector<std::int64_t>& division) {
  Config c = p.config;
  c.parallel.pp_division = division;
  for (int stage = 0; stage < c.parallel.pp; ++stage)
    if (dry_step(c, q.world, p.activations.plan, first_rank_of_stage(c, q.world, stage)).peak() > q.budget)
      return false;
  return true;
}

// Predicts the time of a step with pipeline stages. A stage waits for three reasons: another stage is slower, the
// pipeline fills or drains, or the order of its actions does not hide a message.
void predict_stages(PlannedStep& p, const PlanRequest& q, const ParallelPlan& layout) {
  DryStep largest;
  std::vector<double> busy;  // seconds of each stage
  BlockCosts costs{.blocks = std::vector<double>(static_cast<std::size_t>(p.config.model.layers))};
  const PipelineShape shape = pipeline_shape(layout, layout.micro_batches);
  p.bubble = bubble(shape);
  for (int stage = 0; stage < layout.pp; ++stage) {
    DryStep step = dry_step(p.config, q.world, p.activations.plan, first_rank_of_stage(q.config, q.world, stage));
    p.stage_message_seconds = std::max(p.stage_message_seconds, take_stage_messages(step, q.rates));
    StepTime time(q.rates, precision_of(q.config));
    time.add(step, 1);
    time.finish(step, narrow<int>(layout.forwards()));
    add_costs(costs, time);
    p.stage_peaks.push_back(step.peak());
    p.stage_seconds.push_back(time.compute_seconds());
    busy.push_back(time.compute_seconds() + time.exposed_seconds());
    if (busy.back() == std::ranges::max(busy)) {
      p.compute_seconds = time.compute_seconds();
      p.attention_seconds = time.attention_seconds();
      p.limit = time.largest_part();
    }
    if (stage == 0 || step.peak() > largest.peak()) largest = std::move(step);
  }
  set_waits_of_stages(p, shape, busy);
  if (p.exposed_seconds > p.compute_seconds) p.limit = "waits for stages";
  p.better_division = find_better_division(costs, model_parts(p.config.model, layout), shape);
  if (!p.better_division.empty() && !fits_with_division(p, q, p.better_division)) p.better_division.clear();
  set_memory(p, largest);
  set_rates(p, q, layout);
}

}  // namespace

PlannedStep predict_step(const PlanRequest& q, const ActivationFit& activations) {
  PlannedStep p{.config = q.config, .activations = activations};
  const ParallelPlan layout = plan_of(q.config, q.world);
  if (const std::size_t staging = p.activations.staging)
    p.config.optimizer.offload_staging_bytes = narrow<std::int64_t>(staging);
  p.world = q.world;
  if (layout.pp > 1) return predict_stages(p, q, layout), p;
  StepTime time(q.rates, precision_of(q.config));
  DryStep largest;
  const auto placed = [&](const FakeTransfer& t) { return in_large_layout(t, layout, q.world); };
  const std::vector<ScaledStep> steps = scaled_steps(p.config, q.world);
  // Used in all small layouts: dp * cp is the same, so in each this rank is the first or the last of a ring as in the
  // largest layout, with the same shard.
  const int rank = busiest_rank(plan_of(steps.back().config, steps.back().world));
  for (const ScaledStep& small : steps) {
    largest = dry_step(small.config, small.world, p.activations.plan);
    time.add(timed_step(small.config, small.world, p.activations.plan, largest, rank), small.weight, placed);
  }
  set_memory(p, largest);
  time.finish(largest, narrow<int>(layout.forwards()));
  p.compute_seconds = time.compute_seconds();
  p.attention_seconds = time.attention_seconds();
  p.exposed_seconds = time.exposed_seconds();
  set_rates(p, q, layout);
  p.limit = time.largest_part();
  return p;
}

std::optional<PlannedStep> plan_step(const PlanRequest& q, std::size_t* min_bytes) {
  if (q.config.train.sequence_chunk == kAutoSequenceChunk)
    return plan_step(with_sequence_chunk(q, fit_sequence_chunk(q)), min_bytes);
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

// Tries micro-batches in ascending order, up to the first that does not fit.
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

std::vector<std::int64_t> sequence_chunks(const Config& c) {
  std::vector<std::int64_t> all = {0};
  if (c.train.diagnostics_interval) return all;
  for (std::int64_t tokens = kMaxSequenceChunk; tokens >= kMinSequenceChunk; tokens /= 2)
    if (tokens < c.model.context) all.push_back(tokens);
  return all;
}

std::int64_t fit_sequence_chunk(PlanRequest q) {
  if (q.config.train.micro_batch <= 0) q.config.train.micro_batch = 1;
  std::int64_t smallest = 0;
  for (const std::int64_t tokens : sequence_chunks(q.config)) {
    const std::optional<bool> fits = fits_in_chunks(q, tokens);
    if (!fits && tokens > 0) break;
    smallest = tokens;
    if (fits.value_or(false)) break;
  }
  return smallest;
}

StepSizes fit_step_sizes(PlanRequest q) {
  TrainConfig& t = q.config.train;
  if (t.sequence_chunk == kAutoSequenceChunk) {
    t.sequence_chunk = fit_sequence_chunk(q);
    if (t.sequence_chunk && t.micro_batch == kAutoMicroBatch) t.micro_batch = 1;
    // One sequence fits, but perhaps not the whole share of the batch.
    if (!t.sequence_chunk && t.micro_batch == 0 && !fits_in_chunks(q, 0).value_or(false))
      t.micro_batch = kAutoMicroBatch;
  }
  if (t.micro_batch == kAutoMicroBatch) {
    const StepSizes sizes = fit_micro_batch(q);
    t.micro_batch = sizes.micro_batch;
    if (t.mlp_chunk == kAutoMlpChunk) t.mlp_chunk = sizes.mlp_chunk;
  }
  if (t.mlp_chunk == kAutoMlpChunk) t.mlp_chunk = fit_mlp_chunk(q);
  return {t.micro_batch, t.mlp_chunk, t.sequence_chunk};
}

std::int64_t min_mlp_chunk(const PlanRequest& q) { return mlp_chunks(q).back(); }

}  // namespace ring
