#include "engine/train_step.h"

#include <algorithm>
#include <array>
#include <functional>
#include <span>
#include <utility>

#include "core/checked.h"
#include "core/host_tensor.h"
#include "core/upload.h"
#include "engine/devices.h"
#include "job/run_phase.h"
#include "kernels/elementwise.h"
#include "kernels/group_sums.h"
#include "model/architectures.h"
#include "model/attention_layer.h"
#include "optim/groups.h"

namespace ring {
namespace {

std::int64_t bucket_bytes(const Config& c, const ExecContext& ctx) {
  if (c.train.bucket_bytes) return c.train.bucket_bytes;
  return std::int64_t{ctx.stream.device().backend == Backend::cpu ? 4 : 64} << 20;
}

// Calls `make` to create objects that every step needs. If memory runs out, changes the error's advice: smaller steps
// would not help.
template <class T>
T make_lasting(const std::function<T()>& make) {
  try {
    return make();
  } catch (const OutOfHostMemory& e) {
    throw OutOfHostMemory(
        e.facts,
        "Share the states among processes of other machines with parallel.zero, set optimizer.offload "
        "to states or none, or give the host more memory (or a higher limit of locked memory: ulimit "
        "-l)");
  } catch (const OutOfMemory& e) {
    throw OutOfMemory(e.facts,
                      "The model itself does not fit. Use fewer model.layers or a smaller model.width, share it among "
                      "processes with parallel.zero or parallel.tp, or, on a GPU, set optimizer.offload to states, all "
                      "or weights, or optimizer.master, .moments and .gradients to bf16");
  }
}

// Tells the format of the linear layers, if there is one, that weights do not change while this object lives.
class HeldWeights {
 public:
  explicit HeldWeights(LinearFormat* format) : format_(format) {
    if (format_) format_->hold_weights(true);
  }
  ~HeldWeights() {
    if (format_) format_->hold_weights(false);
  }
  HeldWeights(const HeldWeights&) = delete;
  HeldWeights& operator=(const HeldWeights&) = delete;

 private:
  LinearFormat* format_;
};

}  // namespace

TrainStep::TrainStep(const Config& config, const ExecContext& ctx, Mesh& mesh, const ActivationPlan& plan,
                     std::size_t host_room, bool packed)
    : config_(config),
      ctx_(ctx),
      arena_(std::make_shared<StepArena>(ctx.stream.impl().allocator)),
      step_memory_(ctx.stream, arena_),
      mesh_(mesh),
      packed_(packed),
      corpora_(config.data.mixture.size() > 1 ? narrow<std::int64_t>(config.data.mixture.size()) : 0),
      plan_(plan_of(config, mesh.world())),
      host_room_(host_room),
      model_(make_model(config.model, vocab_padding(ctx.stream.device().backend))),
      parallel_(parallelized()),
      pipeline_(plan_.pp > 1 ? std::make_unique<PipelineStep>(*model_, plan_, mesh.axis("pp"), ctx_) : nullptr),
      optimizer_(make_optimizer()),
      average_(make_average()),
      step_state_(ctx_.zeros({sizeof(StepState)}, DType::u8, Lifetime::run)),
      norm_(parallel_.data->shard(), norm_groups()),
      part_norms_(parallel_.data->shard(), *model_, parallel_.data->sharded() || mesh.group(kDataAxes).rank() == 0,
                  ctx_) {
  if (config.optimizer.offload == StateOffload::weights)
    parallel_.data->set_host_updates(
        [this](const Stream& s, const ShardPiece& p) { optimizer_->wait_for_copies(s, p); },
        [this] { optimizer_->prefetch_next(); });
  set_activations(plan);
  // With auto, a chunk has all tokens until its size is chosen.
  model_->set_mlp_chunk(std::max(config.train.mlp_chunk, std::int64_t{0}));
  allocate_inputs();
}

void TrainStep::set_activations(const ActivationPlan& plan) {
  plan_offloads_ = plan.offloads();
  if (plan_offloads_ && !offload_) offload_ = std::make_unique<HostOffload>(ctx_, host_room_);
  model_->set_activations(plan, offload_.get());
}

Parallelized TrainStep::parallelized() {
  const ScopeGuard scope(*ctx_.scopes, {scopes::parameters});
  bind_groups(config_.optimizer, model_->parameters());
  bind_linears(*model_, linears_of(config_.train), narrow<int>(plan_.tp));
  if (const LinearFormat* format = model_->linear_format()) format->check_device(ctx_);
  const ParameterOptions options{param_types(config_), config_.run.seed, bucket_bytes(config_, ctx_),
                                 may_offload(config_) ? host_room_ : 0};
  return make_lasting<Parallelized>([&] { return parallelize(*model_, mesh_, plan_, options, ctx_); });
}

std::unique_ptr<Optimizer> TrainStep::make_optimizer() {
  return make_lasting<std::unique_ptr<Optimizer>>([&] {
    const ScopeGuard scope(*ctx_.scopes, {scopes::optimizer_states});
    return std::make_unique<Optimizer>(config_.optimizer, parallel_.data->shard(), config_.run.seed, ctx_,
                                       &mesh_.axis("tp"));
  });
}

std::unique_ptr<WeightAverage> TrainStep::make_average() {
  if (config_.train.ema == 0) return nullptr;
  return make_lasting<std::unique_ptr<WeightAverage>>([&] {
    const ScopeGuard scope(*ctx_.scopes, {scopes::optimizer_states});
    return std::make_unique<WeightAverage>(config_.train.ema, parallel_.data->shard(), ctx_);
  });
}

void TrainStep::swap_average_weights() {
  if (copied_) ctx_.stream.wait(*copied_);
  average_->swap_values(ctx_);
  parallel_.data->on_master_weights_changed();
}

void TrainStep::set_staging(std::size_t bytes) {
  const ScopeGuard scope(*ctx_.scopes, {scopes::optimizer_states});
  try {
    optimizer_->set_staging(narrow<std::int64_t>(bytes), ctx_);
  } catch (const OutOfMemory& e) {
    throw OutOfMemory(e.facts, "Set optimizer.offload_staging_bytes to a number, such as 0, instead of auto");
  }
}

std::vector<Communicator*> TrainStep::norm_groups() {
  std::vector<Communicator*> over;
  if (parallel_.data->sharded()) over.push_back(&mesh_.group(kDataAxes));
  if (plan_.tp > 1) over.push_back(&mesh_.axis("tp"));
  if (plan_.pp > 1) over.push_back(&mesh_.axis("pp"));
  return over;
}

void TrainStep::allocate_inputs() {
  const std::int64_t tokens = plan_.in_chunks ? 0 : plan_.micro_batches * micro_tokens();
  const ScopeGuard scope(*ctx_.scopes, {scopes::inputs});
  const InputSizes sizes{tokens, plan_.micro_batches * plan_.micro_batch, corpora_, packed_};
  inputs_ = StepInputs(sizes, ctx_.stream);
  losses_ = StepLosses(corpora_, !model_->auxiliary_loss().empty(), config_.preference.on(), ctx_);
  if (config_.preference.on()) {
    pair_weights_ = ctx_.zeros({tokens}, DType::f32, Lifetime::run);
    pair_sums_ = ctx_.zeros({1 + kPairSums}, DType::f32, Lifetime::run);
  }
  stage_ = std::make_unique<InputStage>(sizes, ctx_.stream);
  lay_out_sequences();
}

void TrainStep::lay_out_sequences() {
  Batch plain;
  plain.sample_indices.resize(static_cast<std::size_t>(plan_.micro_batch));
  if (plan_.in_chunks) {
    plain.unread = std::make_shared<const UnreadRow>();
    chunked_batches_.assign(static_cast<std::size_t>(plan_.micro_batches), plain);
    return;
  }
  sequences_.resize(static_cast<std::size_t>(plan_.micro_batches));
  while (spans_.size() < sequences_.size()) spans_.push_back(std::make_shared<std::vector<Span>>());
  if (!packed_) std::fill(sequences_.begin(), sequences_.end(), parallel_.context.sequences(plain, {}, ctx_));
  parallel_.context.reserve(plan_.micro_batch, ctx_);
}

void TrainStep::set_micro_batch(std::int64_t sequences) {
  const std::int64_t all = plan_.micro_batches * plan_.micro_batch;
  RING_CHECK(plan_.world() == 1 && all % sequences == 0, all, " sequences cannot be computed ", sequences,
             " at a time");
  plan_.micro_batch = sequences;
  plan_.micro_batches = micro_batches_ = all / sequences;
  const ScopeGuard scope(*ctx_.scopes, {scopes::inputs});
  lay_out_sequences();
}

void TrainStep::set_batch_size(std::int64_t sequences) {
  const std::int64_t at_once = std::int64_t{plan_.islands} * plan_.dp * plan_.micro_batch;
  RING_CHECK(sequences % at_once == 0 && sequences <= at_once * plan_.micro_batches, sequences,
             " sequences do not form a step of ", at_once, " at a time");
  micro_batches_ = sequences / at_once;
}

std::string TrainStep::lasting_memory_text() const {
  const std::size_t states = optimizer_->host_bytes(), host = states + parallel_.data->host_weight_bytes();
  return str("weights ", bytes_text(parallel_.data->weight_bytes()), ", gradients ",
             bytes_text(parallel_.data->gradient_bytes()), ", ", states ? "staging of " : "", "optimizer states ",
             bytes_text(optimizer_->device_bytes()),
             parallel_.data->compressor() && parallel_.data->compressor()->bytes()
                 ? ", residuals of gradients " + bytes_text(parallel_.data->compressor()->bytes())
                 : "",
             average_ ? ", average of the weights " + bytes_text(average_->device_bytes()) : "",
             host ? str("; on the host ", bytes_text(host)) : "");
}

void TrainStep::load(const std::vector<Batch>& batches) {
  RING_CHECK(batches.size() == micro_batches(), batches.size(), " batches for ", micro_batches());
  if (plan_.in_chunks) chunked_batches_ = batches;
  stage_->load(batches, inputs_);
  for (std::size_t i = 0; packed_ && !plan_.in_chunks && i < micro_batches(); ++i) set_documents(i, batches[i]);
}

void TrainStep::set_documents(std::size_t index, const Batch& batch) {
  Sequences& s = sequences_[index];
  s = parallel_.context.sequences(batch, micro_batch_part(inputs_.positions, index), ctx_);
  if (s.shards) return;
  *spans_[index] = s.spans();
  s.current_spans = spans_[index];
}

Run TrainStep::micro_run(std::size_t index, const Sequences& sequences, Tape* tape, int chunk) {
  Run run{ctx_, tape, config_.run.seed};
  const std::int64_t replica = std::int64_t{mesh_.coord("island")} * mesh_.degree("dp") + mesh_.coord("dp");
  const std::int64_t before = static_cast<std::int64_t>(index) * mesh_.degree("island") * mesh_.degree("dp") + replica;
  run.first_row = before * plan_.micro_batch * config_.model.context;
  run.training = true;
  run.layout.tp = &mesh_.axis("tp");
  run.state = step_state_;
  parallel_.context.set_up_run(run, plan_.micro_batch, sequences, chunk, index);
  return run;
}

Tensor TrainStep::micro_batch_part(const Tensor& all, std::size_t index) const {
  return all.narrow(0, static_cast<std::int64_t>(index) * micro_tokens(), micro_tokens());
}

TrainStep::ForwardInputs TrainStep::inputs_of(std::size_t index) const {
  return {micro_batch_part(inputs_.ids, index), micro_batch_part(inputs_.targets, index), sequences_[index],
          pair_weights_.defined() ? micro_batch_part(pair_weights_, index) : Tensor{}};
}

TrainStep::ForwardInputs TrainStep::inputs_of_chunk(std::size_t index, int chunk) const {
  if (!ctx_.stream.impl().computes()) {
    const Tensor ids = ctx_.empty({parallel_.context.tokens_of_chunk(chunk)}, DType::i32);
    return {ids, ctx_.empty(ids.shape(), DType::i32),
            parallel_.context.sequences(chunked_batches_[index], {}, ctx_, chunk)};
  }
  const Batch b = parallel_.context.chunk_of(chunked_batches_[index], chunk);
  const Tensor positions = b.positions.empty() ? Tensor{} : upload(b.positions, ctx_.stream);
  return {upload(b.inputs, ctx_.stream), upload(b.targets, ctx_.stream),
          parallel_.context.sequences(b, positions, ctx_, chunk)};
}

// Runs the first micro-batch without tape and dropout, to measure its attention entropies.
void TrainStep::forward(std::vector<Tensor>* entropies) {
  RING_CHECK(!plan_.in_chunks, "a forward over whole sequences, which are computed in chunks");
  const ForwardInputs in = inputs_of(0);
  Run run = micro_run(0, in.seqs, nullptr);
  run.training = false;
  run.probes.entropies = entropies;
  model_->hidden(run, in.ids, in.seqs);
}

std::vector<Tensor> TrainStep::attention_entropies() {
  std::vector<Tensor> layers;
  forward(&layers);
  return layers;
}

std::optional<double> TrainStep::attention_pairs(const AttentionLayer& layer) const {
  if (layer.pattern().selects()) return {};
  return parallel_.context.attention_pairs(sequences_.at(0), layer.pattern(), config_.model.kv_heads / plan_.tp);
}

StepAccess TrainStep::make_step_access() {
  return {ctx_, mesh_, plan_.cp_of_heads(), [this] { forward(nullptr); }};
}

std::vector<AnswerScore> TrainStep::score_answers(const std::vector<Batch>& batches) {
  std::size_t answers = 0, first = 0;
  for (const Batch& b : batches) answers += b.documents.size();
  std::vector<AnswerScore> scores(answers);
  for (std::size_t i = 0; i < batches.size(); ++i) {
    enter(RunPhase::forward);
    const ForwardInputs in = inputs_of(i);
    Run run = micro_run(i, in.seqs, nullptr);
    LossHead head = loss_head(in);
    head.weights = {};
    const LossOutput out = model_->loss(run, in.ids, in.seqs, head);
    const std::span all(scores);
    if (model_->has_head() && !batches[i].documents.empty())
      add_answers(batches[i], to_host<float>(out.token_loss, ctx_.stream),
                  all.subspan(first, batches[i].documents.size()));
    first += batches[i].documents.size();
  }
  return scores;
}

void TrainStep::set_pair_weights(const std::vector<float>& weights, const PairLoss& sums) {
  RING_CHECK(static_cast<std::int64_t>(weights.size()) <= pair_weights_.numel(), weights.size(), " weights of tokens");
  const std::array<float, 1 + kPairSums> values{static_cast<float>(sums.loss), static_cast<float>(sums.chosen),
                                                static_cast<float>(sums.rejected), static_cast<float>(sums.correct)};
  ctx_.stream.impl().upload(pair_weights_.raw(), weights.data(), weights.size() * sizeof(float));
  ctx_.stream.impl().upload(pair_sums_.raw(), values.data(), pair_sums_.bytes());
}

// Runs forward and backward of one micro-batch. Of a sequence in chunks, the last chunk needs no separate forward,
// because no chunk uses its keys.
void TrainStep::micro_step(std::size_t index) {
  if (!plan_.in_chunks) return train_on(inputs_of(index), index);
  const int chunks = parallel_.context.chunks();
  for (int chunk = 0; chunk + 1 < chunks; ++chunk) keep_keys(index, chunk);
  limit_activations();
  for (int chunk = chunks; chunk-- > 0;) train_on(inputs_of_chunk(index, chunk), index, chunk);
}

// Limits activations to the host memory that the keys of earlier chunks and the gradients of these keys will not need.
void TrainStep::limit_activations() {
  if (offload_)
    offload_->set_limit(host_room_ - std::min(host_room_, parallel_.context.chunked()->expected_host_bytes()));
}

// Runs the forward of a chunk, only to store the keys and values that later chunks need.
void TrainStep::keep_keys(std::size_t index, int chunk) {
  const ForwardInputs in = inputs_of_chunk(index, chunk);
  const ChunkedContext::Chunk computing(parallel_.context.chunked(), in.seqs.shards,
                                        ChunkedContext::Keep::for_backward);
  enter(RunPhase::forward);
  Run run = micro_run(index, in.seqs, nullptr, chunk);
  model_->hidden(run, in.ids, in.seqs);
}

// Runs forward and backward of a micro-batch, or of one of its chunks, and adds its loss to the step's loss.
void TrainStep::train_on(const ForwardInputs& in, std::size_t index, int chunk) {
  const ChunkedContext::Chunk computing(parallel_.context.chunked(), in.seqs.shards, ChunkedContext::Keep::nothing);
  Tape tape(index + 1 == micro_batches() && chunk == 0);
  Run run = micro_run(index, in.seqs, &tape, chunk);
  run.probes.auxiliary_loss = losses_.auxiliary;
  enter(RunPhase::forward);
  const LossOutput out = model_->loss(run, in.ids, in.seqs, loss_head(in));
  add_loss(out, index);
  enter(RunPhase::backward);
  tape.backward(out.sum.slot, {}, ctx_);
}

LossHead TrainStep::loss_head(const ForwardInputs& in) const {
  LossHead head;
  head.targets = in.targets;
  head.weights = in.weights;
  head.z_loss = static_cast<float>(config_.train.z_loss);
  head.chunk_bytes = config_.train.loss_chunk_bytes;
  return head;
}

void TrainStep::add_loss(const LossOutput& out, std::size_t index) {
  if (pair_sums_.defined()) return;  // the loss of pairs is not the sum of weighted token losses
  axpby_kernel({out.sum.value, losses_.loss, losses_.loss, 1, 1}, ctx_);
  if (corpora_) {
    const std::int64_t first = static_cast<std::int64_t>(index) * plan_.micro_batch;
    group_sums_kernel({out.token_loss, inputs_.sources.narrow(0, first, plan_.micro_batch), losses_.by_corpus}, ctx_);
  }
}

// Runs the forwards and backwards of all micro-batches, or of their slices, on this process's pipeline stage.
void TrainStep::run_stages() {
  using Place = PipelineStep::Place;
  const PipelineStep::Source source{
      .tokens = [this](const Place& p) { return plan_.micro_batch * parallel_.context.tokens_of_chunk(p.slice); },
      .inputs =
          [this](const Place& p) { return plan_.in_chunks ? inputs_of_chunk(p.micro, p.slice) : inputs_of(p.micro); },
      .run = [this](const Place& p, const Sequences& seqs,
                    Tape* tape) { return micro_run(p.micro, seqs, tape, p.slice); },
      .keys = [this](const Place& p) { return parallel_.context.chunked(p.micro); },
      .loss =
          [this](Run& run, const Var& hidden, const ForwardInputs& in, const Place& p) {
            LossOutput out = model_->head_loss(run, hidden, loss_head(in));
            add_loss(out, p.micro);
            return out;
          }};
  pipeline_->compute(micro_batches(), source);
}

void TrainStep::compute() {
  parallel_.data->start_step();
  optimizer_->begin_step();
  fill_zero(losses_.all, ctx_.stream);
  if (pair_sums_.defined()) {
    copy(losses_.loss, pair_sums_.narrow(0, 0, 1), ctx_.stream);
    copy(losses_.pairs, pair_sums_.narrow(0, 1, kPairSums), ctx_.stream);
  }
  if (corpora_ && model_->has_head()) copy(losses_.target_counts, inputs_.source_targets, ctx_.stream);
  {
    const HeldWeights held(parallel_.data->holds_all_weights() ? model_->linear_format() : nullptr);
    if (pipeline_) run_stages();
    for (std::size_t i = 0; !pipeline_ && i < micro_batches(); ++i) micro_step(i);
  }
  enter(RunPhase::reduce);
  parallel_.data->finish_gradients();
  sum_losses();
  enter(RunPhase::optimizer);
  update();
}

// Tensor-parallel ranks have the same losses, but each rank has only its part of the auxiliary loss. Only the pipeline
// stage with the head has losses; the other stages add zeros.
void TrainStep::sum_losses() {
  const auto sum = [&](Communicator& over, const Tensor& t) {
    over.all_reduce(t, Reduce::sum, ctx_.stream.record()).wait(ctx_.stream);
  };
  if (losses_.auxiliary.defined() && plan_.tp > 1) sum(mesh_.axis("tp"), losses_.auxiliary);
  sum(mesh_.group(kDataAxes), losses_.all);
  if (plan_.pp > 1) sum(mesh_.axis("pp"), losses_.all);
}

void TrainStep::update() {
  const ScopeGuard scope(*ctx_.scopes, {scopes::optimizer});
  norm_.decide_acceptance(step_state_, config_.optimizer.clip, losses_.loss, mesh_.abort_flag(), ctx_);
  if (const std::optional<Event> copied = std::exchange(copied_, std::nullopt)) ctx_.stream.wait(*copied);
  ++updates_begun_;
  optimizer_->update(step_state_, ctx_);
  if (average_) average_->update(step_state_, ctx_);
  if (GradientCompressor* compressor = parallel_.data->compressor()) compressor->end_step(step_state_, ctx_);
  parallel_.data->on_weights_updated();
}

}  // namespace ring
