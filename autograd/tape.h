#pragma once
// The tape: steps in execution order, walked backward. Reverse order is already a valid order, so there is no graph, no
// sort and no recursion. A step owns what it saved and dies right after it ran: memory falls as the backward proceeds.

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

// Where a kernel writes a gradient: dst = beta * dst + gradient; beta = 0 never reads dst.
struct Sink {
  Tensor dst;
  float beta = 0;
};

struct GradSlot {
  Tensor grad;
  bool bound = false;              // grad is a parameter's view into its flat bucket: written to, never replaced
  bool written = false;            // the first write of a step stores, later ones add
  int uses = 0;                    // recorded steps that may still write
  std::function<void()> on_ready;  // parameters only: the gradient of this optimizer step is complete
};
using SlotPtr = std::shared_ptr<GradSlot>;

// A value with its gradient slot; a null slot means that nobody wants the gradient.
struct Var {
  Tensor value;
  SlotPtr slot;
  std::shared_ptr<Recipe> recipe{};  // set: backward rules keep this instead of the value (see Run::recompute)
  bool parameter = false;            // its owner keeps the value: backward rules save it where it is
};

class Backward;
struct Run;
class Communicator;  // comm/communicator.h
class Tape;
class ContextExchange;

// The backward of a recorded step, with what it saved.
struct BackwardRule {
  std::function<void(const ExecContext&)> prefetch;  // announces that run() follows soon (SavedStorage::prefetch)
  std::function<void(const Backward&)> run;
};

// For rules that need nothing but gradients.
struct Nothing {};
struct KeepNothing {
  template <class Vars>
  With<Saved, Vars> operator()(const Run&, const Vars&) const {
    return {};
  }
};

// The values, and the gradient slots, of an S<Var>: S<Tensor>, S<SlotPtr>.
template <class Vars>
With<Tensor, Vars> values_of(const Vars& vars) {
  return map_all<Tensor, Var>(vars, [](const Var& v) { return v.value; });
}
template <class Vars>
With<SlotPtr, Vars> slots_of(const Vars& vars) {
  return map_all<SlotPtr, Var>(vars, [](const Var& v) { return v.slot; });
}

// What an op needs: where to compute, and where to record. A null tape records nothing.
struct Run {
  ExecContext ctx;
  Tape* tape = nullptr;
  std::uint64_t seed = 0;      // of the run: dropout's key
  std::uint32_t step = 0;      // optimizer step, where there is no state
  std::int64_t first_row = 0;  // global index of this micro-batch's first token row: dropout's address
  bool training = false;       // dropout is on
  // The outputs of ops get recipes: they are computed again in the backward instead of being kept. Whoever turns it off
  // again also sets a checkpoint_boundary() on the values at the border.
  bool recompute = false;
  bool recompute_attention = false;  // where `recompute` is on: attention itself, too, whose outputs are kept otherwise
  Tensor state{};  // a StepState on the device, which kernels read step and loss scale from; undefined: none
  // Tensor parallelism with sequence parallelism (ops.h): the processes that share one model. Null, or of size 1: none.
  Communicator* tp = nullptr;
  // Where sequences are cut among ranks: the way to the other parts, and the rows of the micro-batch that these are
  // ([N] i32; undefined: all, in order).
  ContextExchange* cp = nullptr;
  Tensor rows{};
  // Who wants the entropy of every attention in turn, by heads: f32 [2 heads], sums over rows and how many rows, of
  // blocks [2 heads + 2] more (autograd/ops/kept_share.h). Each attention then runs once more. Null: not measured.
  std::vector<Tensor>* entropies = nullptr;
  // [1] f32, to which losses beside the model's own are added as they are recorded, such as those of block indexers
  // (autograd/indexer.h), as sums over tokens; undefined: nobody asks.
  Tensor auxiliary_loss{};
  SavedTensorHooks* saved_hooks = nullptr;  // who may put saved tensors elsewhere; null: all stay

  // What runs and is recorded while the guard lives belongs to this scope.
  ScopeGuard enter(const ScopeId& id) const {
    return {*ctx.scopes, id, tape ? ScopePass::forward : ScopePass::inference};
  }

  // True if an op on these, Vars or structs of Vars, is a step of the tape. Where none of them wants a gradient, as
  // below the first parameter that is trained, it only computes.
  template <class... Inputs>
  bool records(const Inputs&... inputs) const {
    bool wanted = false;
    (visit_all<Var>(inputs, [&](const Var& v) { wanted = wanted || v.slot; }), ...);
    return tape && wanted;
  }
  // Saves a value for the backward: its recipe, if it has one.
  Saved save(const Var&) const;
  Saved save(const Tensor&) const;
  // Records one step of the tape, which there is, in the current scope; returns the value with its slot. `inputs` is a
  // SlotPtr or a struct of SlotPtrs, `saved` a Saved or a struct of Saved. rule(const Backward&, const Inputs&, Kept&),
  // or the same without Kept, writes the gradients of the inputs whose slots are not null.
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
  // Computes forward(ctx, values), which returns the same bytes whenever it is called, and records it if `in`, a Var or
  // an S<Var>, wants a gradient. rule(back, slots, saved) finds in `saved`, an S<Saved>, the values that keep(run, in)
  // saved for it. Where the run recomputes, the other inputs are saved, too, and the output gets a recipe.
  template <class In, KeepsNoTensor Forward, KeepsNoTensor Rule, class Keep = KeepNothing>
  Var op(std::string_view name, const In& in, Forward forward, Rule rule, Keep keep = {}) const {
    const Tensor y = forward(ctx, values_of(in));
    if (!records(in)) return {y, nullptr};
    With<Saved, In> saved = keep(*this, in);
    Var out = record(name, y, slots_of(in), saved, rule);
    if (!recompute) return out;
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

// A tensor that its owner keeps through the step anyway (ids, positions, a StepState): nothing is won by moving it.
inline Saved save_in_place(const Tensor& t) { return Saved(t); }
inline Var in_place(const Tensor& t) { return {.value = t, .parameter = true}; }

// The output with a recipe: make(ctx, from) returns the same bytes (make_recipe). For runs that recompute.
template <class From, KeepsNoTensor Make>
Var recomputable(Var out, const From& from, Make make) {
  out.recipe = make_recipe(from, make);
  return out;
}
// The border of a recomputed part: this value is kept.
inline Var checkpoint_boundary(Var v) {
  v.recipe = nullptr;
  return v;
}

// The gradient of a step's output in, sinks for those of its inputs out.
class Backward {
 public:
  Backward(const ExecContext& ctx, const GradSlot& output, bool final_pass)
      : ctx(ctx), final_pass(final_pass), output_(output) {}

  const Tensor& grad() const { return output_.grad; }
  // Returns where to write the gradient of an input: undefined if its slot is null. The gradient has type `like`,
  // unless the slot is bound. Copies first when the gradient shares its bytes.
  Sink sink(const SlotPtr& input, const Shape&, DType like) const;
  // Adds to the gradient of an input: the first one is stored without a copy. Does nothing if its slot is null.
  void accumulate(const SlotPtr& input, const Tensor& gradient) const;

  const ExecContext& ctx;
  const bool final_pass;

 private:
  const GradSlot& output_;
};

// Makes room for one more write to a slot: allocates an unbound one on the first.
Sink open_sink(GradSlot&, const Shape&, DType, const ExecContext&);

class Tape {
 public:
  // final_pass: the last micro-batch of an optimizer step, whose completed gradients fire on_ready.
  explicit Tape(bool final_pass = true) : final_pass_(final_pass) {}
  ~Tape();
  Tape(const Tape&) = delete;
  Tape& operator=(const Tape&) = delete;

  // Records one step of a scope. Returns the new slot of its output.
  SlotPtr record(const ScopeId&, std::string_view op, std::vector<SlotPtr> inputs, BackwardRule);

  // Runs everything recorded, last step first, in the scopes in which it was recorded. What a step saved is announced
  // (SavedStorage::prefetch) while the one before it runs. `root` gets the gradient `seed`;
  // an undefined seed is for ops that take none (the loss head, whose gradient is complete when its forward has run).
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
  void run_part(const ExecContext&);
  void run_sublayer(const ExecContext&);
  void run(Step&, const ExecContext&) const;
  void announce_last(const ExecContext&) const;
  void run_last(const ExecContext&);
  void release(std::vector<SlotPtr>& inputs) const;

  std::vector<Step> steps_;
  bool final_pass_;
};

}  // namespace ring
