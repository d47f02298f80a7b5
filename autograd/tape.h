#pragma once
// The tape: steps in execution order, walked backward. The reverse order is already a valid one, so there is no graph,
// no sort and no recursion. A step owns its saved tensors and is destroyed right after it ran, so memory falls as the
// backward proceeds.

#include <functional>
#include <memory>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "autograd/saved.h"
#include "core/step_state.h"
#include "kernels/kernel.h"

namespace ring {

// The destination of a gradient: dst = beta * dst + gradient; beta = 0 never reads dst.
struct Sink {
  Tensor dst;
  float beta = 0;
};

struct Fp8Matrix;
struct Fp8Max;

// A gradient that is computed only once its reader is known: a reader that computes in FP8 does not need the gradient
// in its own type. The functions hold the tensors that they read.
struct DeferredGradient {
  Shape shape;
  DType dtype;
  std::function<void(const ExecContext&, const Tensor& to)> compute;  // overwrites `to`
  // Computes the gradient in FP8; arguments as in QuantizeFp8 (kernels/fp8.h). Null if only compute() is possible.
  std::function<void(const ExecContext&, const Fp8Matrix& out, const Fp8Matrix& transposed, const Fp8Max&)> quantize{};
};

struct GradSlot {
  Tensor grad;
  bool bound = false;      // grad is a parameter's view of its flat bucket: written to, never replaced
  bool written = false;    // false until the first write of a step, which stores; later ones add
  bool reads_fp8 = false;  // the step that made the value calls Backward::take_deferred()
  bool reads_max = false;  // the step that made the value reads `max`
  int uses = 0;            // recorded steps that may still write to the slot
  std::shared_ptr<const DeferredGradient> deferred{};  // if set, `written` is true, but grad is not yet computed
  Tensor max{};  // f32 [1], the largest magnitude of grad, ignoring NaN; undefined if it was not computed
  std::function<void()> on_ready;  // parameters only: called when the gradient of this optimizer step is complete
};
using SlotPtr = std::shared_ptr<GradSlot>;

// A value with its gradient slot; the slot is null if no gradient is wanted.
struct Var {
  Tensor value;
  SlotPtr slot;
  std::shared_ptr<Recipe> recipe{};  // if set, backward rules save it instead of the value (see SavePolicy::recompute)
  bool parameter = false;            // true if the owner keeps the value alive: save_in_place()
};

class Backward;
struct Run;
class Communicator;  // comm/communicator.h
class Tape;
class ContextExchange;

// The backward of a recorded step, with its saved tensors.
struct BackwardRule {
  std::function<void(const ExecContext&)> prefetch;  // announces that run() follows soon (SavedStorage::prefetch)
  std::function<void(const Backward&)> run;
};

// Saved values of rules that need only gradients.
struct Nothing {};
struct SaveNothing {
  template <class Vars>
  With<Saved, Vars> operator()(const Run&, const Vars&) const {
    return {};
  }
};

// Return the values and the gradient slots of an S<Var>: S<Tensor>, S<SlotPtr>.
template <class Vars>
With<Tensor, Vars> values_of(const Vars& vars) {
  return map_all<Tensor, Var>(vars, [](const Var& v) { return v.value; });
}
template <class Vars>
With<SlotPtr, Vars> slots_of(const Vars& vars) {
  return map_all<SlotPtr, Var>(vars, [](const Var& v) { return v.slot; });
}

// How a run is divided among processes.
struct RunLayout {
  // Tensor parallelism with sequence parallelism (ops.h): the processes that share one model. Null, or of size 1, if
  // there is none.
  Communicator* tp = nullptr;
  // Context parallelism, if sequences are sharded: the exchange with the other ranks, and the micro-batch rows that
  // this rank holds ([N] i32; undefined means all, in order).
  ContextExchange* cp = nullptr;
  Tensor rows{};
};

// Says what ops save for backward.
struct SavePolicy {
  // If true, outputs of ops get recipes: backward recomputes them instead of saving them. Code that sets this back to
  // false must call checkpoint_boundary() on the values that leave the recomputed part.
  bool recompute = false;
  // If true with `recompute`, attention is recomputed, too; otherwise its outputs are saved.
  bool recompute_attention = false;
  SavedTensorHooks* hooks = nullptr;  // may store saved tensors elsewhere; null if all stay
};

// Collects results of ops besides their outputs.
struct Probes {
  // If not null, receives one tensor per call of attention: f32 [2 heads], the sum of the entropy over rows of each
  // head, then the row count of each head. For block patterns, [2 heads + 3] more numbers follow
  // (RecallStats::copy_to(), autograd/selected/attention_recall.h). Each attention then runs once more.
  std::vector<Tensor>* entropies = nullptr;
  // Sum over tokens of the losses besides the model's own, such as those of block indexers
  // (autograd/learned/indexer.h): [1] f32. Each loss is added when it is computed. Undefined if not wanted.
  Tensor auxiliary_loss{};
};

// The context of an op: where to compute, and the tape to record on. A null tape records nothing.
struct Run {
  ExecContext ctx;
  Tape* tape = nullptr;
  std::uint64_t seed = 0;      // the run's seed, which is the key of dropout
  std::uint32_t step = 0;      // optimizer step, if there is no state
  std::int64_t first_row = 0;  // global index of this micro-batch's first token row, for dropout masks
  bool training = false;       // true if dropout is on
  Tensor state{};  // a StepState on the device, from which kernels read step and loss scale; undefined if there is none
  RunLayout layout{};
  SavePolicy saving{};
  Probes probes{};

  // Enters a scope: everything that runs or is recorded while the guard lives belongs to the scope.
  ScopeGuard enter(const ScopeId& id) const {
    return {*ctx.scopes, id, tape ? ScopePass::forward : ScopePass::inference};
  }

  // Returns true if an op on these inputs, Vars or structs of Vars, is recorded. If none of them wants a gradient, as
  // before the first trained parameter, the op only computes.
  template <class... Inputs>
  bool records(const Inputs&... inputs) const {
    bool wanted = false;
    (visit_all<Var>(inputs, [&](const Var& v) { wanted = wanted || v.slot; }), ...);
    return tape && wanted;
  }
  // Saves a value for backward, or its recipe if it has one.
  Saved save(const Var&) const;
  Saved save(const Tensor&) const;
  // Records one step on the tape, which must not be null, in the current scope. Returns the value with its slot.
  // `inputs` is a SlotPtr or a struct of SlotPtrs, `saved` a Saved or a struct of Saved. rule(const Backward&, const
  // Inputs&, Kept&), or the same without Kept, writes the gradients of the inputs with non-null slots.
  template <class Inputs, class Kept, KeepsNoTensor Rule>
  Var record(std::string_view op, Tensor value, const Inputs& inputs, Kept saved, Rule rule) const {
    const auto kept = std::make_shared<Kept>(std::move(saved));
    const auto prefetch = [kept](const ExecContext& at) {
      visit_all<Saved>(*kept, [&](const Saved& s) { s.prefetch(at); });
    };
    const auto run = [kept, inputs, rule](const Backward& back) {
      if constexpr (std::is_invocable_v<const Rule&, const Backward&, const Inputs&>)
        rule(back, inputs);
      else
        rule(back, inputs, *kept);
    };
    return record_step(op, std::move(value), list_all<SlotPtr>(inputs), {prefetch, run});
  }
  template <class Inputs, KeepsNoTensor Rule>
  Var record(std::string_view op, Tensor value, const Inputs& inputs, Rule rule) const {
    return record(op, std::move(value), inputs, Nothing{}, rule);
  }
  // Computes forward(ctx, values), and records it if an input wants a gradient. `in` is a Var or an S<Var>. forward
  // must return bit-identical results whenever it is called. rule(back, slots, saved) gets the values that keep(run,
  // in) saved, as an S<Saved>. If the run recomputes, the other inputs are saved, too, and the output gets a recipe.
  template <class In, KeepsNoTensor Forward, KeepsNoTensor Rule, class Keep = SaveNothing>
  Var op(std::string_view name, const In& in, Forward forward, Rule rule, Keep keep = {}) const {
    const Tensor y = forward(ctx, values_of(in));
    if (!records(in)) return {y, nullptr};
    With<Saved, In> saved = keep(*this, in);
    Var out = record(name, y, slots_of(in), saved, rule);
    if (!saving.recompute) return out;
    const std::vector<Var> vars = list_all<Var>(in);
    std::size_t i = 0;
    visit_all<Saved>(saved, [&](Saved& s) {
      const Var& v = vars[i++];
      if (!s.defined()) s = save(v);
    });
    out.recipe = make_recipe(saved, forward);
    return out;
  }

 private:
  Var record_step(std::string_view op, Tensor value, std::vector<SlotPtr> inputs, BackwardRule) const;
};

// Save a tensor that its owner keeps through the step anyway (ids, positions, a StepState): moving it elsewhere would
// gain nothing.
inline Saved save_in_place(const Tensor& t) { return Saved(t); }
inline Var in_place(const Tensor& t) { return {.value = t, .parameter = true}; }

// Gives the output a recipe, even if the run does not recompute. make(ctx, from) must return bit-identical values
// (make_recipe).
template <class From, KeepsNoTensor Make>
Var recomputable(Var out, const From& from, Make make) {
  out.recipe = make_recipe(from, make);
  return out;
}
// Ends a recomputed part: returns the value without its recipe, so that the value itself is saved.
inline Var checkpoint_boundary(Var v) {
  v.recipe = nullptr;
  return v;
}

// The interface for a backward rule: provides the gradient of the step's output, and accepts those of the inputs.
class Backward {
 public:
  Backward(const ExecContext& ctx, GradSlot& output, bool final_pass)
      : ctx(ctx), final_pass(final_pass), output_(output) {}

  const Tensor& grad() const;
  const Tensor& max() const { return output_.max; }  // the largest magnitude of grad(); undefined if not computed
  // Returns the output's gradient if it is not yet computed, to a caller that computes it; else null.
  std::shared_ptr<const DeferredGradient> take_deferred() const { return std::exchange(output_.deferred, nullptr); }
  // Returns the destination of an input's gradient: undefined if its slot is null. The gradient has type `like`, unless
  // the slot is bound. Copies an existing gradient first if other steps share its bytes.
  Sink sink(const SlotPtr& input, const Shape&, DType like) const;
  // Adds to the gradient of an input; the first gradient is stored without a copy. Does nothing if the slot is null.
  void accumulate(const SlotPtr& input, const Tensor& gradient) const;
  // Same for a deferred gradient: computes it now or, if it is the slot's first one and the reader reads FP8, later.
  void accumulate(const SlotPtr& input, DeferredGradient gradient) const;

  const ExecContext& ctx;
  const bool final_pass;

 private:
  GradSlot& output_;
};

// Returns the destination of the next write to a slot; the first write to an unbound slot allocates it.
Sink open_sink(GradSlot&, const Shape&, DType, const ExecContext&);

class Tape {
 public:
  // final_pass: true for the last micro-batch of an optimizer step, whose completed gradients call on_ready.
  explicit Tape(bool final_pass = true) : final_pass_(final_pass) {}
  ~Tape();
  Tape(const Tape&) = delete;
  Tape& operator=(const Tape&) = delete;

  // Records one step of a scope. Returns the new slot of its output.
  SlotPtr record(const ScopeId&, std::string_view op, std::vector<SlotPtr> inputs, BackwardRule);

  // Runs all recorded steps, last first, in the scopes in which they were recorded. A step's saved tensors are
  // announced (SavedStorage::prefetch) while the step run before it computes. `root` gets the gradient `seed`; an
  // undefined seed is for ops that take none (the loss head, whose gradient is complete after its forward).
  void backward(const SlotPtr& root, const Tensor& seed, const ExecContext& ctx);

  bool final_pass() const { return final_pass_; }
  std::size_t size() const { return steps_.size(); }

 private:
  struct Step {
    ScopeId scope;
    std::string_view op;
    SlotPtr output;
    std::vector<SlotPtr> inputs;
    BackwardRule rule;
  };
  void run_model_part(const ExecContext&);
  void run_sublayer(const ExecContext&);
  void run(Step&, const ExecContext&) const;
  void prefetch_last_step(const ExecContext&) const;
  void run_last_step(const ExecContext&);
  void release_inputs(std::vector<SlotPtr>& inputs) const;

  std::vector<Step> steps_;
  bool final_pass_;
};

}  // namespace ring
