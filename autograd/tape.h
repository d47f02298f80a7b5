#pragma once
// The tape: steps in execution order, walked backward. Reverse order is already a valid order, so there is no graph, no
// sort and no recursion. A step owns what it saved and dies right after it ran: memory falls as the backward proceeds.

#include <functional>
#include <memory>
#include <string_view>
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
class Communicator;  // comm/communicator.h
class Tape;
class ContextExchange;
using BackwardFn = std::function<void(Backward&)>;

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
  // blocks [2 heads + 2] more (autograd/ops/kept_share.h). Costs each attention once more. Null: nobody.
  std::vector<Tensor>* entropies = nullptr;
  // [1] f32, to which the losses of block indexers are added as they are recorded (autograd/indexer.h), as sums over
  // tokens; undefined: nobody asks.
  Tensor index_loss{};
  SavedTensorHooks* saved_hooks = nullptr;  // who may put saved tensors elsewhere; null: all stay

  // What runs and is recorded while the guard lives belongs to this scope.
  ScopeGuard enter(const ScopeId& id) const {
    return {*ctx.scopes, id, tape ? ScopePass::forward : ScopePass::inference};
  }

  // Whether an op on these is a step of the tape. Where none of them wants a gradient, as below the first parameter
  // that is trained, it only computes.
  template <class... Inputs>
  bool records(const Inputs&... inputs) const {
    return tape && (inputs.slot || ...);
  }
  // For the backward. Of a value that is made again, its recipe is saved.
  Saved save(const Var&) const;
  Saved save(const Tensor&) const;
  // One step of the tape, which there is, in the current scope: the value with its slot. The rule gets the gradients
  // of `inputs` to write, and reads what was saved.
  template <KeepsNoTensor Rule>
  Var record(std::string_view op, Tensor value, std::vector<SlotPtr> inputs, std::vector<Saved> saved,
             Rule rule) const {
    return record_step(op, std::move(value), std::move(inputs), std::move(saved), std::move(rule));
  }

 private:
  Var record_step(std::string_view op, Tensor value, std::vector<SlotPtr> inputs, std::vector<Saved>, BackwardFn) const;
};

// A tensor that its owner keeps through the step anyway (ids, positions, a StepState): nothing is won by moving it.
inline Saved save_in_place(const Tensor& t) { return Saved(t); }

// The output with a recipe: `make` returns the same bytes from the tensors that were saved. For runs that recompute.
template <KeepsNoTensor Make>
Var recomputable(Var out, std::vector<Saved> from, Make make) {
  const auto one = [make](const ExecContext& ctx, const Tensors& t) { return Tensors{make(ctx, t)}; };
  out.recipe = std::make_shared<Recipe>(Recipe{std::move(from), one});
  return out;
}
// The border of a recomputed part: this value is kept.
inline Var checkpoint_boundary(Var v) {
  v.recipe = nullptr;
  return v;
}

// The gradients of a step's outputs and what it saved in, sinks for its inputs out.
class Backward {
 public:
  Backward(const ExecContext& ctx, std::vector<SlotPtr>& outputs, std::vector<SlotPtr>& inputs,
           std::vector<Saved>& saved, bool final_pass)
      : ctx(ctx), final_pass(final_pass), outputs_(outputs), inputs_(inputs), saved_(saved) {}

  // What the step saved, by its place in the list; take(): the last use, after which the bytes may be overwritten.
  Tensor saved(int i) const { return saved_[static_cast<std::size_t>(i)].get(ctx); }
  Tensor take(int i) { return saved_[static_cast<std::size_t>(i)].take(ctx); }
  const Tensor& grad(int output = 0) const;  // undefined when nothing wrote it
  bool needs_grad(int input) const { return inputs_[static_cast<std::size_t>(input)] != nullptr; }
  // Has type `like`, unless the slot is bound. Copies first when the gradient shares its bytes.
  Sink sink(int input, const Shape&, DType like);
  // The whole gradient of an input is an existing tensor: stored without a copy, or added to what is there.
  void accumulate(int input, const Tensor& gradient);
  const SlotPtr& input(int i) const { return inputs_[static_cast<std::size_t>(i)]; }

  const ExecContext& ctx;
  const bool final_pass;

 private:
  std::vector<SlotPtr>& outputs_;
  std::vector<SlotPtr>& inputs_;
  std::vector<Saved>& saved_;
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

  // One step of a scope, with any number of outputs; returns their new slots.
  std::vector<SlotPtr> record(const ScopeId&, std::string_view op, int outputs, std::vector<SlotPtr> inputs,
                              std::vector<Saved>, BackwardFn fn);

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
    std::vector<SlotPtr> outputs, inputs;
    std::vector<Saved> saved;
    BackwardFn fn;
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
