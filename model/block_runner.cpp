#include "model/block_runner.h"

#include <utility>

#include "core/scope.h"
#include "model/scopes.h"

namespace ring {
namespace {

// Gives a member of a Run another value for as long as it lives.
template <class T>
class [[nodiscard]] Changed {
 public:
  Changed(T& member, T value) : member_(member), before_(std::exchange(member, value)) {}
  ~Changed() { member_ = before_; }
  Changed(const Changed&) = delete;
  Changed& operator=(const Changed&) = delete;

 private:
  T& member_;
  T before_;
};

}  // namespace

bool BlockRunner::recomputes(Recompute sublayer) const {
  return plan.recompute == sublayer || plan.recompute == Recompute::block || plan.recompute == Recompute::full;
}

Var BlockRunner::attention(Run& run, const Var& x, const RowsFn& f) const {
  const ScopeGuard scope = run.enter(block_scope(layer_, scopes::attention));
  const Changed saved(run.saved_hooks, hooks(run));
  const Changed recompute(run.recompute, recomputes(Recompute::attention));
  const Changed twice(run.recompute_attention, plan.recompute == Recompute::full);
  const Var h = f(run, x);
  return plan.recompute == Recompute::attention ? checkpoint_boundary(h) : h;
}

Var BlockRunner::mlp(Run& run, const Var& x, const RowsFn& f) const {
  const ScopeGuard scope = run.enter(block_scope(layer_, scopes::mlp));
  const Changed saved(run.saved_hooks, hooks(run));
  const Changed recompute(run.recompute, recomputes(Recompute::mlp));
  return checkpoint_boundary(over_chunks(run, x, mlp_chunk, f));
}

}  // namespace ring
