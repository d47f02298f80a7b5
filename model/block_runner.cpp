#include "model/block_runner.h"

#include "model/scopes.h"

namespace ring {

SavePolicy BlockRunner::policy(const Run& run, Recompute sublayer) const {
  const bool both = plan.recompute == Recompute::block || plan.recompute == Recompute::full;
  return {.recompute = both || plan.recompute == sublayer,
          .recompute_attention = plan.recompute == Recompute::full,
          .hooks = plan.offload ? host : run.saving.hooks};
}

BlockRunner::AttentionScope::AttentionScope(const BlockRunner& r, Run& run)
    : scope(run.enter(block_scope(r.layer_, scopes::attention))),
      saving(run.saving, r.policy(run, Recompute::attention)) {}

Var BlockRunner::mlp(Run& run, const Var& x, const RowsFn& f) const {
  const ScopeGuard scope = run.enter(block_scope(layer_, scopes::mlp));
  const ScopedValue saving(run.saving, policy(run, Recompute::mlp));
  return checkpoint_boundary(map_chunks(run, x, mlp_chunk, f));
}

}  // namespace ring
