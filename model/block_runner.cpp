#include "model/block_runner.h"

#include "model/scopes.h"

namespace ring {

bool BlockRunner::recomputes(Recompute sublayer) const {
  return plan.recompute == sublayer || plan.recompute == Recompute::block || plan.recompute == Recompute::full;
}

BlockRunner::AttentionScope::AttentionScope(const BlockRunner& r, Run& run)
    : scope(run.enter(block_scope(r.layer_, scopes::attention))),
      hooks(run.saved_hooks, r.hooks(run)),
      recompute(run.recompute, r.recomputes(Recompute::attention)),
      twice(run.recompute_attention, r.plan.recompute == Recompute::full) {}

Var BlockRunner::mlp(Run& run, const Var& x, const RowsFn& f) const {
  const ScopeGuard scope = run.enter(block_scope(layer_, scopes::mlp));
  const ScopedValue saved(run.saved_hooks, hooks(run));
  const ScopedValue recompute(run.recompute, recomputes(Recompute::mlp));
  return checkpoint_boundary(map_chunks(run, x, mlp_chunk, f));
}

}  // namespace ring
