#include "trainer/trainer.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <functional>
#include <utility>

#include "checkpoint/reader.h"
#include "comm/host.h"
#include "core/checked.h"
#include "core/counted.h"
#include "core/cpu/thread_pool.h"
#include "core/log.h"
#include "kernels/elementwise.h"
#include "kernels/tuning.h"
#include "model/flops.h"
#include "model/patterns.h"
#include "optim/kinds.h"
#include "optim/schedule.h"
#include "trainer/devices.h"
#include "trainer/diagnose.h"
#include "trainer/evaluate.h"
#include "trainer/session.h"

namespace ring {
namespace {

std::int64_t bucket_bytes(const Config& c, const ExecContext& ctx) {
  if (c.train.bucket_bytes) return c.train.bucket_bytes;
  return std::int64_t{ctx.stream.device().backend == Backend::cpu ? 4 : 64} << 20;
}

template <class T>
T advised(const char* advice, const std::function<T()>& make) {
  try {
    return make();
  } catch (const OutOfMemory& e) {
    throw OutOfMemory(e.facts, advice);
  }
}

// What every step needs, however small it is: advice about steps would not help.
template <class T>
T make_lasting(const std::function<T()>& make) {
  return advised<T>(
      "The model itself does not fit: take fewer model.layers or a smaller model.width, share it among processes with "
      "parallel.zero or parallel.tp, or, on a GPU, set optimizer.master, .moments and .gradients to bf16",
      make);
}

double now() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

}  // namespace

Trainer::Trainer(const Config& config, const ExecContext& ctx, Mesh& mesh, Loader& loader)
    : config_(config),
      ctx_(ctx),
      arena_(std::make_shared<StepArena>(ctx.stream.impl().allocator)),
      step_memory_(ctx.stream, arena_),
      mesh_(mesh),
      loader_(loader),
      plan_(plan_of(config, mesh.world())),
      model_(config.model, vocab_padding(ctx.stream.device().backend)),
      parallel_(parallelized()),
      sequences_(micro_batches()),
      graph_(mesh.world() > 1 || packed() ? Switch::off : config.train.cuda_graph, ctx.stream, arena_),
      guard_(config.train) {
  model_.set_recompute(RecomputePlan::uniform(config.model.layers, config.train.recompute));
  std::vector<Communicator*> norm_over;
  if (parallel_.data->sharded()) norm_over.push_back(&mesh_.group(kDataAxes));
  if (plan_.tp > 1) norm_over.push_back(&mesh_.axis("tp"));
  optimizer_ = make_lasting<std::unique_ptr<Optimizer>>([&] {
    const ScopeGuard scope(*ctx_.scopes, {ScopeKind::optimizer_states});
    return optimizer_kind(config.optimizer).make(config.optimizer, parallel_.data->shard(), config.run.seed, ctx_);
  });
  step_state_ = ctx_.zeros({sizeof(StepState)}, DType::u8, Lifetime::run);
  norm_.emplace(parallel_.data->shard(), std::move(norm_over), ctx_);
  const std::int64_t tokens = plan_.micro_batches * micro_tokens();
  const ScopeGuard scope(*ctx_.scopes, {ScopeKind::inputs});
  inputs_ = StepInputs(tokens, packed(), ctx_.stream);
  loss_ = ctx_.empty({1}, DType::f32, Lifetime::run);
  stage_ = std::make_unique<InputStage>(tokens, packed(), ctx_.stream);
  if (!packed()) {
    Batch plain;
    plain.sample_indices.resize(static_cast<std::size_t>(plan_.micro_batch));
    std::fill(sequences_.begin(), sequences_.end(), parallel_.context.sequences(plain, {}, ctx_));
  }
  parallel_.context.reserve(plan_.micro_batch, ctx_);
  agreed_ = mesh_.world() == 1 || !ctx_.tuning;
  for (std::size_t i = 0; i < most_in_flight() + 1; ++i)
    results_.push_back(ctx_.stream.impl().host_buffer(sizeof(StepState)));
}

Parallelized Trainer::parallelized() {
  const ScopeGuard scope(*ctx_.scopes, {ScopeKind::parameters});
  const ParameterOptions options{param_types(config_), config_.run.seed, bucket_bytes(config_, ctx_)};
  return make_lasting<Parallelized>([&] { return parallelize(model_, mesh_, plan_, options, ctx_); });
}

std::string Trainer::lasting_memory() const {
  std::size_t states = 0;
  for (const OptimizerState& s : optimizer_->states()) states += s.buffer.flat.bytes();
  return str("weights ", bytes_text(parallel_.data->weight_bytes()), ", gradients ",
             bytes_text(parallel_.data->gradient_bytes()), ", optimizer states ", bytes_text(states));
}

double Trainer::valid_tokens(const std::vector<Batch>& batches) {
  std::int64_t valid = 0;
  if (mesh_.coord("tp") == 0)  // the slices of a model have the same batches: they count once
    for (const Batch& b : batches) valid += b.valid_targets;
  return sum_host(mesh_.host(), static_cast<double>(valid));
}

Run Trainer::micro_run(std::size_t index, Tape* tape) {
  Run run{ctx_, tape, config_.run.seed, static_cast<std::uint32_t>(steps_)};
  const std::int64_t before = static_cast<std::int64_t>(index) * mesh_.degree("dp") + mesh_.coord("dp");
  run.first_row = before * plan_.micro_batch * config_.model.context;
  run.training = true;
  run.tp = &mesh_.axis("tp");
  run.state = step_state_;
  parallel_.context.prepare(run, plan_.micro_batch);
  return run;
}

Tensor Trainer::micro_part(const Tensor& all, std::size_t index) const {
  return all.narrow(0, static_cast<std::int64_t>(index) * micro_tokens(), micro_tokens());
}

// Forward and backward of one micro-batch, whose loss is added to the step's.
void Trainer::micro_step(std::size_t index) {
  Tape tape(index + 1 == micro_batches());
  Run run = micro_run(index, &tape);
  LossHead head;
  head.targets = micro_part(inputs_.targets, index);
  head.z_loss = static_cast<float>(config_.train.z_loss);
  head.chunk_bytes = config_.train.loss_chunk_bytes;
  const LossOutput out = model_.loss(run, micro_part(inputs_.ids, index), sequences_[index], head);
  axpby_kernel({out.sum.value, loss_, loss_, 1, 1}, ctx_);
  tape.backward(out.sum.slot, {}, ctx_);
}

// Everything between the inputs and the new weights; nothing in here depends on the step but through device memory,
// and, with packed documents, through where they lie.
void Trainer::compute() {
  parallel_.data->start_step();
  fill_zero(loss_, ctx_.stream);
  for (std::size_t i = 0; i < micro_batches(); ++i) micro_step(i);
  parallel_.data->finish_gradients();
  mesh_.group(kDataAxes).all_reduce(loss_, Reduce::sum, ctx_.stream.record()).wait(ctx_.stream);
  const ScopeGuard scope(*ctx_.scopes, {ScopeKind::optimizer});
  norm_->judge(step_state_, config_.optimizer.clip, loss_, ctx_);
  wait_for_copies();
  optimizer_->update(step_state_, ctx_);
  parallel_.data->updated();
}

void Trainer::wait_for_copies() {
  if (const std::optional<Event> copied = std::exchange(copied_, std::nullopt)) ctx_.stream.wait(*copied);
}

std::int64_t Trainer::planned_steps() const {
  if (config_.train.steps || !steps_) return config_.train.steps;
  const double at_this_pace = config_.train.minutes * 60 / seconds_ * static_cast<double>(steps_);
  return std::max(steps_ + 1, static_cast<std::int64_t>(std::min(at_this_pace, static_cast<double>(kMostSteps))));
}

double Trainer::seconds_left() const {
  if (!steps_) return std::nan("");
  const double limit = config_.train.minutes > 0 ? config_.train.minutes * 60 - seconds_ : INFINITY;
  if (!config_.train.steps) return limit;
  return std::min(limit, seconds_ / static_cast<double>(steps_) * static_cast<double>(config_.train.steps - steps_));
}

// With a limit in time alone the schedule follows the pace, which differs between ranks: rank 0's counts.
double Trainer::learning_rate() {
  double total = static_cast<double>(planned_steps());
  if (!config_.train.steps) total = sum_host(mesh_.host(), mesh_.rank() == 0 ? total : 0);
  if (total == 0) total = static_cast<double>(config_.schedule.warmup_steps + 1);
  return config_.optimizer.lr * schedule_factor(config_.schedule, steps_, static_cast<std::int64_t>(total));
}

void Trainer::upload(const std::vector<Batch>& batches) {
  stage_->load(batches, inputs_);
  for (std::size_t i = 0; packed() && i < micro_batches(); ++i)
    sequences_[i] = parallel_.context.sequences(batches[i], micro_part(inputs_.positions, i), ctx_);
}

void Trainer::upload_state(double lr, double valid) {
  StepState s;
  s.step = static_cast<std::uint32_t>(steps_);
  s.lr = static_cast<float>(lr);
  s.loss_scale = static_cast<float>(1.0 / valid);
  const StepGuard::Limits limits = guard_.limits(steps_ - static_cast<std::int64_t>(most_in_flight()));
  s.loss_limit = static_cast<float>(limits.loss);
  s.norm_limit = static_cast<float>(limits.norm);
  ctx_.stream.impl().upload(step_state_.raw(), &s, kStepInputBytes);
}

// Several processes that each measure their kernels choose differently, which shows in the bits. So the first step is
// computed once before it counts, with a loss of NaN, which updates nothing. Where that would take long, the first
// step counts, and only those after it have the same choices everywhere.
void Trainer::rehearse() {
  agree();                         // on what the files say
  constexpr double kLongest = 10;  // seconds
  const double flops =
      flops_per_token(config_.model) * static_cast<double>(config_.train.batch_size * config_.model.context);
  if (flops / mesh_.world() > kLongest * kRoughGpuFlops) return;
  upload_state(0, std::nan(""));
  graph_.run([this] { compute(); }, ctx_.observer != nullptr);
  agree();
  agreed_ = true;
  fill_zero(step_state_, ctx_.stream);  // not halted any more
}

// All take over the choices of the lowest rank that made them.
void Trainer::agree() {
  if (mesh_.world() == 1 || !ctx_.tuning) return;
  ctx_.stream.synchronize();  // host waits: start
  const std::vector<std::string> choices = gather_host(mesh_.host(), ctx_.tuning->text());
  for (auto it = choices.rbegin(); it != choices.rend(); ++it) ctx_.tuning->adopt(*it);
}

void Trainer::launch() {
  advised<void>(
      "Lower train.micro_batch or model.context, set train.recompute to mlp or block, share the model or its sequences "
      "among more processes (parallel), or, on a GPU, set optimizer.moments to bf16",
      [this] { launch_step(); });
}

void Trainer::launch_step() {
  if (steps_ >= kMostSteps) fail("training stopped: a run has at most ", kMostSteps, " steps");
  RING_CHECK(flight_.size() <= most_in_flight(), "a step was launched with ", flight_.size(), " in flight");
  Flight f;
  f.started = now();
  for (std::size_t i = 0; i < micro_batches(); ++i) f.batches.push_back(parallel_.context.part(loader_.next()));
  f.report.data_seconds = now() - f.started;
  f.valid = std::max(1.0, valid_tokens(f.batches));
  f.report.lr = learning_rate();
  upload(f.batches);
  if (!agreed_) rehearse();
  upload_state(f.report.lr, f.valid);
  const double queued = now();
  if (graph_.replays()) wait_for_copies();  // in front of the whole step; one that waits inside is not recorded
  graph_.run([this] { compute(); }, ctx_.observer != nullptr || copied_.has_value());
  if (!std::exchange(agreed_, true)) agree();
  f.launch_seconds = now() - queued;
  f.result = results_[static_cast<std::size_t>(steps_) % results_.size()];
  ctx_.stream.impl().copy(f.result.get(), step_state_.raw(), sizeof(StepState));
  f.done = ctx_.stream.record();
  f.report.tokens = config_.train.batch_size * config_.model.context;
  f.report.exchange_seconds = parallel_.data->wait_seconds();
  f.report.step = ++steps_;
  cursor_ += config_.train.batch_size;
  tokens_ += f.report.tokens;
  flight_.push_back(std::move(f));
}

StepReport Trainer::finish() {
  RING_CHECK(!flight_.empty(), "no step is in flight");
  Flight f = std::move(flight_.front());
  flight_.pop_front();
  f.done.synchronize();  // host waits: log, one step late where the device runs on its own
  mesh_.check();
  const StepState& state = *static_cast<const StepState*>(f.result.get());
  StepReport& r = f.report;
  r.loss = static_cast<double>(state.loss) / f.valid;
  r.norm = std::fabs(std::sqrt(state.squared_norm));  // of NaN, too: it prints without a sign
  r.accepted = state.accepted != 0;
  r.seconds = now() - std::max(f.started, last_finish_);
  last_finish_ = now();
  graph_.timed(f.launch_seconds, r.seconds);
  if (!r.accepted) return undo(f), r;
  seconds_ += r.seconds;
  guard_.accept(r.step, r.loss, r.norm);
  return r;
}

void Trainer::undo(Flight& f) {
  const auto steps = static_cast<std::int64_t>(flight_.size()) + 1;
  flight_.clear();
  steps_ -= steps;
  cursor_ -= steps * config_.train.batch_size;
  tokens_ -= steps * f.report.tokens;
  f.report.step = steps_;
  bad_batches_ = std::move(f.batches);
  loader_.seek(static_cast<std::uint64_t>(cursor_));
  fill_zero(step_state_, ctx_.stream);  // not halted any more
}

void Trainer::skip_to(std::int64_t end) {
  RING_CHECK(flight_.empty() && end >= cursor_, "samples are skipped with a step in flight, or backwards");
  cursor_ = end;
  loader_.seek(static_cast<std::uint64_t>(cursor_));
}

// All ranks look at the same kind of thing, since a forward pass may need what the others hold.
std::string Trainer::diagnose() {
  std::string found;
  const auto look = [&](const auto& in) {
    if (!found.empty()) return;
    const std::vector<std::string> all = gather_host(mesh_.host(), in());
    for (std::size_t rank = 0; rank < all.size() && found.empty(); ++rank)
      if (!all[rank].empty()) found = all.size() == 1 ? all[rank] : str(all[rank], ", on rank ", rank);
  };
  look([&] { return non_finite_weight(parallel_.data->shard(), ctx_); });
  for (std::size_t m = 0; m < bad_batches_.size(); ++m)
    look([&] {
      return non_finite_activation(
          model_, micro_run(m, nullptr), from_host(bad_batches_[m].inputs, ctx_.stream),
          parallel_.context.sequences(bad_batches_[m], positions_of(bad_batches_[m], ctx_), ctx_));
    });
  look([&] { return non_finite_gradient(parallel_.data->shard(), ctx_); });
  if (found.empty()) found = "none: the loss itself overflowed";
  return str("step ", steps_ + 1, ", samples ", cursor_, " to ", cursor_ + config_.train.batch_size - 1,
             "; first tensor that is not finite: ", found);
}

void Trainer::add_state(State& state) {
  const Parameters& params = model_.parameters();
  const OwnedShard& shard = parallel_.data->shard();
  add_parameters(state, kWeightsPrefix, params, shard, shard.values);
  for (const OptimizerState& s : optimizer_->states())
    add_parameters(state, "optimizer." + s.name + ".", params, shard, s.buffer);
  state.add("train.step", &steps_);
  state.add("train.seconds", &seconds_, ValueOf::rank_0);  // each rank measures its own
  state.add("train.tokens", &tokens_);
  state.add("data.cursor", &cursor_);
  state.add("train.bad_steps", guard_.state());
}

void Trainer::restored() {
  parallel_.data->loaded();
  guard_.restored();
  loader_.seek(static_cast<std::uint64_t>(cursor_));
}

void Trainer::load_weights(const std::string& checkpoint) {
  State state;
  add_parameters(state, kWeightsPrefix, model_.parameters(), parallel_.data->shard(), parallel_.data->shard().values);
  ring::load_weights(checkpoint, state, kWeightsPrefix, ctx_.stream);
  parallel_.data->loaded();
}

namespace {

// A config says what is wanted of a GPU and trains on a CPU all the same, in fp32.
void resolve_device(Config& c, Backend backend, bool warn) {
  c.run.device = backend == Backend::cuda ? DeviceChoice::cuda : DeviceChoice::cpu;
  OptimizerConfig& o = c.optimizer;
  const bool bf16_states = o.master == DType::bf16 || o.moments == DType::bf16 || o.gradients == DType::bf16;
  if (backend == Backend::cpu) {
    if (warn &&
        (bf16_states || c.train.precision == PrecisionChoice::bf16 || c.train.precision == PrecisionChoice::tf32))
      log::warn("the CPU computes in fp32: train.precision and the types of optimizer.* are fp32 here");
    c.train.precision = PrecisionChoice::fp32;
    o.master = o.moments = o.gradients = DType::f32;
    return;
  }
  if (c.train.precision == PrecisionChoice::automatic) c.train.precision = PrecisionChoice::bf16;
  if (c.train.precision != PrecisionChoice::bf16 && bf16_states)
    fail("optimizer.master, .moments and .gradients: bf16 goes with train.precision: bf16 only");
}

// The bytes of whatever a micro-batch makes are counted by 64 bits.
void check_activations(const Config& c, std::int64_t rows) {
  constexpr std::int64_t kMostNumbers = std::int64_t{1} << 58;
  const ModelConfig& m = c.model;
  const std::int64_t widest = std::max({m.width, (m.heads + 2 * m.kv_heads) * m.head_dim, 2 * m.mlp_width});
  if (rows * m.context > kMostNumbers / widest)
    fail("train.micro_batch: ", rows, " sequences of ", m.context, " tokens, each with ", widest,
         " numbers in its widest layer, are beyond any memory: lower train.micro_batch, model.context or the model");
}

}  // namespace

Config resolve_config(Config c, std::int64_t corpus_vocab, int world, std::optional<Backend> launched, bool warn) {
  if (!c.model.vocab_size) c.model.vocab_size = corpus_vocab;
  if (c.model.vocab_size < corpus_vocab)
    fail("model.vocab_size: ", c.model.vocab_size, " is smaller than the corpus's vocabulary of ", corpus_vocab,
         "; set it to 0 to take the corpus's");
  c.model = c.model.resolved();
  if (!c.run.threads) c.run.threads = default_threads();
  resolve_device(c, launched.value_or(backend_of(c.run.device)), warn);
  if (c.train.tokens) c.train.steps = steps_of_tokens(c.train, c.model.context);
  c.train.tokens = 0;
  const std::int64_t rows = plan_of(c, world).micro_batch;
  check_tokens_at_once("train.micro_batch", rows, c.model.context);
  check_activations(c, rows);
  return c;
}

Config resolve_config(Config c, std::int64_t corpus_vocab, Mesh& mesh) {
  const auto launched = mesh.world() > 1 ? std::optional(mesh.device().backend) : std::nullopt;
  return resolve_config(std::move(c), corpus_vocab, mesh.world(), launched, mesh.rank() == 0);
}

LoaderOptions loader_options(const Config& c, Mesh& mesh) {
  return {.context = c.model.context,
          .rows = plan_degrees(c.parallel, c.model, batch_size(c), mesh.world()).micro_batch,
          .seed = c.run.seed,
          .rank = mesh.coord("dp"),
          .world = mesh.degree("dp"),
          .prefetch = c.data.prefetch,
          .packing = c.data.packing};
}

}  // namespace ring
