#include "engine/pipeline_step.h"

#include "core/checked.h"
#include "job/run_phase.h"

namespace ring {
namespace {

// Maximum sends in flight per stage. The memory of a sent tensor is in use until the stream has waited for the send.
constexpr std::size_t kMaxSending = 2;

}  // namespace

PipelineStep::PipelineStep(const Model& model, const ParallelPlan& plan, Communicator& stages, const ExecContext& ctx)
    : model_(model), plan_(plan), stages_(stages), ctx_(ctx), parts_(model_parts(model.config(), plan)) {}

void PipelineStep::compute(std::size_t micro_batches, const Source& source) {
  if (steps_.empty() || static_cast<std::size_t>(shape_.micro_batches) != micro_batches) {
    shape_ = pipeline_shape(plan_, narrow<std::int64_t>(micro_batches));
    const PipelineOrder order = plan_.config.pp_order;
    steps_ =
        lower_to_steps(shape_, make_pipeline_table(shape_, order), stages_.rank(), ticks_of_messages(order, shape_));
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
      backward(*step.action, source);
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
    out = std::move(outbox(to.pass).extract({to.part, to.unit}).mapped());
  }
  if (step.receive) {
    const PipelineAction& to = step.receive->consumer;
    // Gradients have the shape and dtype of the part's output, like the inputs of the next part.
    in = model_.empty_input(ctx_, part_of(to).first, source.tokens(place_of(to)));
  }
  const Event after = ctx_.stream.record();
  const auto work = std::make_shared<Work>(step.send && step.receive
                                               ? stages_.send_recv(out, step.send->peer, in, step.receive->peer, after)
                                           : step.send ? stages_.send(out, step.send->peer, after)
                                                       : stages_.recv(in, step.receive->peer, after));
  if (step.send) sending_.push_back(work);
  if (!step.receive) return;
  const PipelineAction& to = step.receive->consumer;
  inbox(to.pass)[{to.part, to.unit}] = {in, work};
}

Tensor PipelineStep::take(Inbox& inbox, const Key& key) const {
  const Received received = inbox.extract(key).mapped();
  received.work->wait(ctx_.stream);
  return received.tensor;
}

void PipelineStep::forward(const PipelineAction& a, const Source& source) {
  const BlockRange part = part_of(a);
  const Place place = place_of(a);
  std::unique_ptr<InFlight>& now = in_flight_[{a.part, a.unit}];
  now = std::make_unique<InFlight>(a.unit == shape_.backward_unit(shape_.units() - 1));
  now->in = source.inputs(place);
  now->run.emplace(source.run(place, now->in.seqs, &now->tape));
  if (part.first > 0) now->x = {take(inputs_, {a.part, a.unit}), std::make_shared<GradSlot>()};
  enter(RunPhase::forward);
  const ChunkedContext::Chunk computing(source.keys(place), now->in.seqs.shards, ChunkedContext::Keep::for_backward);
  Var y = model_.run_part(*now->run, part, now->x, now->in.ids, now->in.seqs);
  now->root = y.slot;
  if (is_last(a))
    now->hidden = std::move(y);
  else
    outputs_[{a.part + 1, a.unit}] = y.value;
}

// If no parameter of the first part is trained, its forward recorded nothing, and its root is null.
void PipelineStep::backward(const PipelineAction& a, const Source& source) {
  const std::unique_ptr<InFlight> now = std::move(in_flight_.extract(Key{a.part, a.unit}).mapped());
  const Tensor seed = is_last(a) ? Tensor{} : take(gradients_, {a.part, a.unit});
  enter(RunPhase::backward);
  if (is_last(a)) now->root = source.loss(*now->run, std::exchange(now->hidden, {}), now->in, place_of(a)).sum.slot;
  if (now->root) now->tape.backward(now->root, seed, ctx_);
  if (!now->x.slot) return;
  Tensor& gradient = now->x.slot->grad;
  RING_CHECK(gradient.defined() && gradient.dtype() == now->x.value.dtype() && gradient.numel() == now->x.value.numel(),
             "part ", a.part, " of the model has no gradient of its input, ", describe(now->x.value));
  input_gradients_[{a.part - 1, a.unit}] = gradient.view(now->x.value.shape());
}

}  // namespace ring
