#include "engine/pipeline_step.h"

#include "core/checked.h"
#include "job/run_phase.h"

namespace ring {
namespace {

// Maximum sends in flight per stage. The memory of a sent tensor is in use until the stream has waited for the send.
constexpr std::size_t kMaxSending = 2;

}  // namespace

PipelineStep::PipelineStep(const Model& model, const ParallelPlan& plan, Communicator& stages, const ExecContext& ctx)
    : model_(model),
      plan_(plan),
      stages_(stages),
      ctx_(ctx),
      parts_(divide_blocks(model.config(), pipeline_shape(plan, plan.micro_batches).all_parts())) {}

void PipelineStep::compute(std::size_t micro_batches, const Source& source) {
  if (micro_batches_ != micro_batches) {
    const PipelineShape shape = pipeline_shape(plan_, narrow<std::int64_t>(micro_batches));
    steps_ = lower_to_steps(shape, make_pipeline_table(shape, plan_.config.pp_order), stages_.rank());
    micro_batches_ = micro_batches;
  }
  // An earlier step may have been abandoned.
  in_flight_.clear();
  for (Inbox* box : {&inputs_, &gradients_}) box->clear();
  for (Outbox* box : {&outputs_, &input_gradients_}) box->clear();
  for (const StageStep& step : steps_) {
    if (!step.action)
      exchange(step, source);
    else if (step.action->pass == PipelinePass::forward)
      forward(*step.action, source);
    else
      backward(*step.action);
  }
  for (; !sending_.empty(); sending_.pop_front()) sending_.front()->wait(ctx_.stream);
}

// Starts the messages of a step. Waits only for earlier sends, so that few sent tensors hold memory.
void PipelineStep::exchange(const StageStep& step, const Source& source) {
  while (step.send && sending_.size() >= kMaxSending) {
    sending_.front()->wait(ctx_.stream);
    sending_.pop_front();
  }
  Tensor out, in;
  if (step.send) {
    const PipelineAction& to = step.send->consumer;
    out = std::move(outbox(to.pass).extract({to.part, to.micro}).mapped());
  }
  if (step.receive) {
    const PipelineAction& to = step.receive->consumer;
    if (to.pass == PipelinePass::backward)  // a gradient has the shape and the type of the part's output
      in = model_.empty_input(ctx_, part_of(to).first, in_flight_.at({to.part, to.micro})->in.ids.dim(0));
    else
      in = model_.empty_input(ctx_, part_of(to).first, source.inputs(static_cast<std::size_t>(to.micro)).ids.dim(0));
  }
  const Event after = ctx_.stream.record();
  const auto work = std::make_shared<Work>(step.send && step.receive
                                               ? stages_.send_recv(out, step.send->peer, in, step.receive->peer, after)
                                           : step.send ? stages_.send(out, step.send->peer, after)
                                                       : stages_.recv(in, step.receive->peer, after));
  if (step.send) sending_.push_back(work);
  if (!step.receive) return;
  const PipelineAction& to = step.receive->consumer;
  inbox(to.pass)[{to.part, to.micro}] = {in, work};
}

Tensor PipelineStep::take(Inbox& inbox, const Key& key) const {
  const Received received = inbox.extract(key).mapped();
  received.work->wait(ctx_.stream);
  return received.tensor;
}

void PipelineStep::forward(const PipelineAction& a, const Source& source) {
  const auto micro = static_cast<std::size_t>(a.micro);
  const BlockRange part = part_of(a);
  std::unique_ptr<InFlight>& now = in_flight_[{a.part, a.micro}];
  now = std::make_unique<InFlight>(micro + 1 == micro_batches_);
  now->in = source.inputs(micro);
  now->run.emplace(source.run(micro, now->in.seqs, &now->tape));
  if (part.first > 0) now->x = {take(inputs_, {a.part, a.micro}), std::make_shared<GradSlot>()};
  enter(RunPhase::forward);
  const Var y = model_.run_part(*now->run, part, now->x, now->in.ids, now->in.seqs);
  if (static_cast<std::size_t>(a.part) + 1 < parts_.size()) {
    outputs_[{a.part + 1, a.micro}] = y.value;
    now->root = y.slot;
    return;
  }
  now->root = source.loss(*now->run, y, micro).sum.slot;
}

// If no parameter of the first part is trained, its forward recorded nothing, and its root is null.
void PipelineStep::backward(const PipelineAction& a) {
  const std::unique_ptr<InFlight> now = std::move(in_flight_.extract(Key{a.part, a.micro}).mapped());
  const bool last = static_cast<std::size_t>(a.part) + 1 == parts_.size();
  const Tensor seed = last ? Tensor{} : take(gradients_, {a.part, a.micro});
  enter(RunPhase::backward);
  if (now->root) now->tape.backward(now->root, seed, ctx_);
  if (!now->x.slot) return;
  Tensor& gradient = now->x.slot->grad;
  RING_CHECK(gradient.defined() && gradient.dtype() == now->x.value.dtype() && gradient.numel() == now->x.value.numel(),
             "part ", a.part, " of the model has no gradient of its input, ", describe(now->x.value));
  input_gradients_[{a.part - 1, a.micro}] = gradient.view(now->x.value.shape());
}

}  // namespace ring
