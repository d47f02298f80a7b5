#include "trainer/trainer.h"

#include <algorithm>
#include <chrono>
#include <cmath>

#include "comm/host.h"
#include "core/cpu/thread_pool.h"
#include "kernels/elementwise.h"
#include "trainer/diagnose.h"
#include "trainer/schedule.h"
#include "trainer/session.h"

namespace ring {
namespace {

class Stopwatch {
 public:
  double seconds() const { return std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count(); }

 private:
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

std::vector<SlotRange> slot_ranges(const Parameters& params) {
  std::vector<SlotRange> out;
  for (const Param* p : params.layout()) out.push_back({p->var.slot, p->offset, p->shape.numel()});
  return out;
}

}  // namespace

Trainer::Trainer(const Config& config, const Context& ctx, Communicator& comm, Loader& loader)
    : config_(config),
      ctx_(ctx),
      comm_(comm),
      loader_(loader),
      micro_batch_(loader.options().rows),
      model_(config.model, vocab_padding(config.run.device)) {
  model_.recompute = config.train.recompute;
  model_.allocate(ctx_, config.run.seed);
  Parameters& params = model_.parameters();
  optimizer_ = std::make_unique<Optimizer>(params, config.optimizer, ctx_);
  reducer_ = std::make_unique<Reducer>(comm_, ctx_.stream,
                                       make_buckets(params.gradients, slot_ranges(params), config.train.bucket_bytes));
}

double Trainer::valid_tokens(const std::vector<Batch>& batches) {
  std::int64_t valid = 0;
  for (const Batch& b : batches) valid += b.valid_targets;
  return sum_host(comm_, static_cast<double>(valid));
}

Run Trainer::micro_run(std::size_t index, Tape* tape) const {
  Run run{ctx_, tape, config_.run.seed, static_cast<std::uint32_t>(steps_)};
  const std::int64_t before = static_cast<std::int64_t>(index) * comm_.size() + comm_.rank();
  run.first_row = before * micro_batch_ * config_.model.context;
  run.training = true;
  return run;
}

Sequences Trainer::sequences() const { return Sequences::uniform(micro_batch_, config_.model.context, ctx_); }

// Forward and backward of one micro-batch; returns its loss sum [1].
Tensor Trainer::micro_step(std::size_t index, double valid) {
  const Batch& batch = batches_[index];
  Tape tape(index + 1 == batches_.size());
  Run run = micro_run(index, &tape);
  LossHead head;
  head.targets = from_host(batch.targets, ctx_.stream);
  head.scale = static_cast<float>(1.0 / valid);
  head.z_loss = static_cast<float>(config_.train.z_loss);
  const LossOutput out = model_.loss(run, from_host(batch.inputs, ctx_.stream), sequences(), head);
  tape.backward(out.sum.slot, {}, ctx_);
  return out.sum.value;
}

std::int64_t Trainer::planned_steps() const {
  if (config_.train.steps || !steps_) return config_.train.steps;
  return std::max(steps_ + 1,
                  static_cast<std::int64_t>(config_.train.minutes * 60 / seconds_ * static_cast<double>(steps_)));
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
  if (!config_.train.steps) total = sum_host(comm_, comm_.rank() == 0 ? total : 0);
  if (total == 0) total = static_cast<double>(config_.schedule.warmup_steps + 1);
  return config_.optimizer.lr * schedule_factor(config_.schedule, steps_, static_cast<std::int64_t>(total));
}

StepReport Trainer::step() {
  const Stopwatch watch;
  StepReport report;
  const std::int64_t count = config_.train.batch_size / micro_batch_ / comm_.size();
  batches_.clear();
  for (std::int64_t i = 0; i < count; ++i) batches_.push_back(loader_.next());
  report.data_seconds = watch.seconds();

  const double valid = std::max(1.0, valid_tokens(batches_));
  report.lr = learning_rate();
  optimizer_->begin(steps_, report.lr, valid, ctx_);
  model_.parameters().start_step();
  Tensor loss = ctx_.zeros({1});
  for (std::size_t i = 0; i < batches_.size(); ++i) axpby_kernel({micro_step(i, valid), loss, loss, 1, 1}, ctx_);
  reducer_->finish();
  if (comm_.size() > 1) comm_.all_reduce(loss, Reduce::sum, ctx_.stream.record()).wait(ctx_.stream);
  optimizer_->update(loss, ctx_);

  const StepState state = optimizer_->read_state(ctx_);
  report.loss = static_cast<double>(to_host<float>(loss, ctx_.stream)[0]) / valid;  // host waits: log
  report.norm = std::sqrt(state.squared_norm);
  report.finite = state.finite != 0;
  report.tokens = config_.train.batch_size * config_.model.context;
  report.exchange_seconds = reducer_->wait_seconds();
  report.seconds = watch.seconds();
  if (report.finite) {
    ++steps_;
    cursor_ += config_.train.batch_size;
    tokens_ += report.tokens;
    seconds_ += report.seconds;
  }
  report.step = steps_;
  return report;
}

std::string Trainer::diagnose() {
  std::string found = non_finite_weight(model_, ctx_);
  for (std::size_t m = 0; m < batches_.size() && found.empty(); ++m)
    found =
        non_finite_activation(model_, micro_run(m, nullptr), from_host(batches_[m].inputs, ctx_.stream), sequences());
  if (found.empty()) found = non_finite_gradient(model_, ctx_);
  if (found.empty()) found = "none in what this rank computed: the loss itself overflowed";
  return str("step ", steps_ + 1, ", samples ", cursor_, " to ", cursor_ + config_.train.batch_size - 1,
             "; first tensor that is not finite: ", found);
}

void Trainer::add_state(State& state) {
  const Parameters& params = model_.parameters();
  add_parameters(state, kWeightsPrefix, params, params.values);
  add_parameters(state, "optimizer.m.", params, optimizer_->m);
  add_parameters(state, "optimizer.v.", params, optimizer_->v);
  state.add("train.step", &steps_);
  state.add("train.seconds", &seconds_, ValueOf::rank_0);  // each rank measures its own
  state.add("train.tokens", &tokens_);
  state.add("data.cursor", &cursor_);
}

void Trainer::restored() { loader_.seek(static_cast<std::uint64_t>(cursor_)); }

Config resolve_config(Config c, std::int64_t corpus_vocab, int ranks) {
  if (!c.model.vocab_size) c.model.vocab_size = corpus_vocab;
  if (c.model.vocab_size < corpus_vocab)
    fail("model.vocab_size: ", c.model.vocab_size, " is smaller than the corpus's vocabulary of ", corpus_vocab,
         "; set it to 0 to take the corpus's");
  c.model = c.model.resolved();
  if (!c.run.threads) c.run.threads = default_threads();
  const std::int64_t per_step = c.train.batch_size * c.model.context;
  if (c.train.tokens) c.train.steps = (c.train.tokens + per_step - 1) / per_step;
  c.train.tokens = 0;
  micro_batch(c, ranks);
  return c;
}

std::int64_t micro_batch(const Config& c, int ranks) {
  if (c.train.batch_size % ranks)
    fail("train.batch_size: ", c.train.batch_size, " sequences do not divide among ", ranks, " processes");
  const std::int64_t share = c.train.batch_size / ranks;
  const std::int64_t rows = c.train.micro_batch ? c.train.micro_batch : share;
  if (share % rows)
    fail("train.micro_batch: ", c.train.micro_batch, " does not divide the ", share,
         " sequences of each process (train.batch_size = ", c.train.batch_size, ", ", ranks, " processes)");
  return rows;
}

}  // namespace ring
