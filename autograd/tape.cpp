#include "autograd/tape.h"

#include "kernels/elementwise.h"
#include "kernels/observers.h"

namespace ring {

Saved Run::save(const Var& v) const {
  if (v.recipe) return Saved(v.recipe);
  return v.parameter || (v.slot && v.slot->bound) ? save_in_place(v.value) : save(v.value);
}

Saved Run::save(const Tensor& t) const {
  const std::shared_ptr<SavedStorage> elsewhere = saving.hooks && t.defined() ? saving.hooks->pack(t, ctx) : nullptr;
  return elsewhere ? Saved(elsewhere) : Saved(t);
}

Sink open_sink(GradSlot& slot, const Shape& shape, DType dtype, const ExecContext& ctx) {
  if (!slot.grad.defined()) slot.grad = ctx.empty(shape, dtype);
  RING_CHECK(slot.grad.numel() == shape.numel(), "gradient of shape ", shape, " for a slot of shape ",
             slot.grad.shape());
  const bool first = !slot.written;
  slot.written = true;
  return {slot.grad.shape() == shape ? slot.grad : slot.grad.view(shape), first ? 0.0f : 1.0f};
}

namespace {

// Computes the gradient of a slot if that was deferred.
void compute_deferred(GradSlot& slot, const ExecContext& ctx) {
  if (!slot.deferred) return;
  const std::shared_ptr<const DeferredGradient> deferred = std::exchange(slot.deferred, nullptr);
  slot.grad = ctx.empty(deferred->shape, deferred->dtype);
  deferred->compute(ctx, slot.grad);
}

}  // namespace

const Tensor& Backward::grad() const {
  compute_deferred(output_, ctx);
  return output_.grad;
}

Sink Backward::sink(const SlotPtr& input, const Shape& shape, DType dtype) const {
  if (!input) return {};
  GradSlot& slot = *input;
  compute_deferred(slot, ctx);
  slot.max = {};
  const bool shared = slot.written && !slot.bound && !slot.grad.unique();
  if (shared) {  // another step still reads these bytes, which an in-place addition would change
    Tensor own = ctx.empty(slot.grad.shape(), slot.grad.dtype());
    copy(own, slot.grad, ctx.stream);
    slot.grad = own;
  }
  return open_sink(slot, shape, dtype, ctx);
}

void Backward::accumulate(const SlotPtr& input, const Tensor& gradient) const {
  if (!input) return;
  GradSlot& slot = *input;
  compute_deferred(slot, ctx);
  slot.max = {};
  if (!slot.grad.defined()) {
    slot.grad = gradient;
    slot.written = true;
    return;
  }
  const Sink s = sink(input, gradient.shape(), gradient.dtype());
  axpby_kernel({gradient, s.beta != 0 ? s.dst : Tensor{}, s.dst, 1.0f, s.beta}, ctx);
}

void Backward::accumulate(const SlotPtr& input, DeferredGradient gradient) const {
  if (!input) return;
  if (gradient.quantize && input->reads_fp8 && !input->written && !input->bound) {
    input->deferred = std::make_shared<const DeferredGradient>(std::move(gradient));
    input->written = true;
    return;
  }
  const Sink s = sink(input, gradient.shape, gradient.dtype);
  if (s.beta == 0) return gradient.compute(ctx, s.dst);
  const Tensor computed = ctx.empty(gradient.shape, gradient.dtype);
  gradient.compute(ctx, computed);
  axpby_kernel({.x = computed, .y = s.dst, .out = s.dst, .alpha = 1, .beta = s.beta}, ctx);
}

Tape::~Tape() {  // if backward never ran, its steps must not count as uses of their inputs any more
  for (Step& step : steps_)
    for (SlotPtr& slot : step.inputs)
      if (slot) --slot->uses;
}

SlotPtr Tape::record(const ScopeId& scope, std::string_view op, std::vector<SlotPtr> inputs, BackwardRule rule) {
  for (SlotPtr& slot : inputs)
    if (slot) ++slot->uses;
  steps_.push_back({scope, op, std::make_shared<GradSlot>(), std::move(inputs), std::move(rule)});
  return steps_.back().output;
}

Var Run::record_step(std::string_view op, Tensor value, std::vector<SlotPtr> inputs, BackwardRule rule) const {
  return {std::move(value), tape->record(ctx.scopes->current(), op, std::move(inputs), std::move(rule))};
}

void Tape::run(Step& step, const ExecContext& ctx) const {
  if (!step.output->written) return;
  const ObservedStep observed(ctx, step.op);
  step.rule.run(Backward(ctx, *step.output, final_pass_));
}

void Tape::prefetch_last_step(const ExecContext& ctx) const {
  if (!steps_.empty()) steps_.back().rule.prefetch(ctx);
}

// Runs the last step, and releases its input slots.
void Tape::run_last_step(const ExecContext& ctx) {
  std::vector<SlotPtr> inputs;
  {
    Step step = std::move(steps_.back());  // saved tensors are freed with the step
    steps_.pop_back();
    prefetch_last_step(ctx);
    run(step, ctx);
    inputs = std::move(step.inputs);
  }
  release_inputs(inputs);
}

void Tape::backward(const SlotPtr& root, const Tensor& seed, const ExecContext& ctx) {
  RING_CHECK(root, "backward from a value that no recorded op made");
  root->grad = seed;
  root->written = true;
  const ScopeGuard all(*ctx.scopes, {scopes::backward}, ScopePass::backward);
  prefetch_last_step(ctx);
  while (!steps_.empty()) run_model_part(ctx);
}

// Runs the last steps that were recorded in the same part of the model.
void Tape::run_model_part(const ExecContext& ctx) {
  const ScopeId part = steps_.back().scope.part();
  if (part == ScopeId{}) return run_last_step(ctx);
  const ScopeGuard guard(*ctx.scopes, part, ScopePass::backward);
  while (!steps_.empty() && steps_.back().scope.part() == part) run_sublayer(ctx);
  ctx.scopes->after_backward(part);
}

void Tape::run_sublayer(const ExecContext& ctx) {
  const ScopeId scope = steps_.back().scope;
  if (scope.sublayer == ScopeKind{}) return run_last_step(ctx);
  const ScopeGuard guard(*ctx.scopes, scope, ScopePass::backward);
  while (!steps_.empty() && steps_.back().scope == scope) run_last_step(ctx);
  ctx.scopes->after_backward(scope);
}

void Tape::release_inputs(std::vector<SlotPtr>& inputs) const {
  for (SlotPtr& slot : inputs)
    if (slot && --slot->uses == 0 && final_pass_ && slot->on_ready) slot->on_ready();
}

}  // namespace ring
