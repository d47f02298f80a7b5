#pragma once
// Runs the two sublayers of a block according to its activation plan: what backward recomputes, where saved tensors are
// stored, and how many rows the MLP takes at a time. The block's own code does not depend on the plan.

#include <cstdint>
#include <utility>

#include "autograd/ops.h"
#include "model/activation_plan.h"

namespace ring {

class BlockRunner {
 public:
  explicit BlockRunner(std::int64_t layer) : layer_(layer) {}

  // Returns f(run, x) [N,C], run in the scope of the block's attention and according to the block's plan.
  template <class F>
  Var attention(Run& run, const Var& x, const F& f) const {
    const AttentionScope scope(*this, run);
    const Var h = f(run, x);
    return plan.recompute == Recompute::attention ? checkpoint_boundary(h) : h;
  }
  // Returns f(run, x) [N,C], run in the scope of the block's MLP and according to the block's plan. f must treat rows
  // independently, because it is called with mlp_chunk rows at a time.
  Var mlp(Run&, const Var& x, const RowsFn& f) const;

  BlockPlan plan;
  SavedTensorHooks* host = nullptr;  // stores the saved tensors if plan.offload is set
  std::int64_t mlp_chunk = 0;        // rows per call of the MLP; 0 means all rows at once

 private:
  // Sets a member of a Run to a different value for the lifetime of this object.
  template <class T>
  class [[nodiscard]] ScopedValue {
   public:
    ScopedValue(T& member, T value) : member_(member), before_(std::exchange(member, value)) {}
    ~ScopedValue() { member_ = before_; }
    ScopedValue(const ScopedValue&) = delete;
    ScopedValue& operator=(const ScopedValue&) = delete;

   private:
    T& member_;
    T before_;
  };
  // While it exists, the scope is attention, and the Run saves tensors by the plan's policy for attention.
  struct AttentionScope {
    AttentionScope(const BlockRunner&, Run&);
    ScopeGuard scope;
    ScopedValue<SavePolicy> saving;
  };
  SavePolicy policy(const Run&, Recompute sublayer) const;  // save policy of a sublayer by the plan

  std::int64_t layer_;
};

}  // namespace ring
