#include "optim/optimizer.h"

#include "core/philox.h"
#include "kernels/optimizer.h"
#include "parallel/ordered_sum.h"

namespace ring {
namespace {

std::vector<Tensor> counted_gradients(const OwnedShard& h, const std::vector<UpdateRange>& runs) {
  const bool first = h.slice.rank == 0;
  if (first && h.gradients.flat.numel() == h.size) return {h.gradients.flat};
  std::vector<Tensor> out;
  for (const UpdateRange& run : runs)
    if (run.cut || first) out.push_back(run.of(h.gradients));
  return out;
}

}  // namespace

Optimizer::Optimizer(const OwnedShard& holding, const OptimizerConfig& config, std::uint64_t seed,
                     const ExecContext& ctx, std::vector<Communicator*> norm_over)
    : m(ctx.zeros({holding.size}, config.moments)),
      v(ctx.zeros({holding.size}, config.moments)),
      state(ctx.zeros({sizeof(StepState)}, DType::u8)),
      holding_(holding),
      config_(config),
      seed_(seed),
      runs_(holding.runs()),
      counted_(counted_gradients(holding, runs_)),
      norm_over_(std::move(norm_over)),
      squares_(ctx.empty({1})) {}

// The same on every rank.
void Optimizer::norm(const ExecContext& ctx) {
  for (const Tensor& gradients : counted_) squared_norm_kernel({gradients, state}, ctx);
  const Tensor own = state.narrow(0, offsetof(StepState, squared_norm), sizeof(float));
  for (Communicator* group : norm_over_) {
    if (group->size() == 1) continue;
    ctx.stream.impl().copy(squares_.raw(), own.raw(), own.bytes());
    sum_in_order({squares_}, *group, ctx);
    ctx.stream.impl().copy(own.raw(), squares_.raw(), own.bytes());
  }
}

void Optimizer::update(const Tensor& loss, const ExecContext& ctx) {
  norm(ctx);
  clip_factor_kernel({state, static_cast<float>(config_.clip), loss}, ctx);
  for (const UpdateRange& run : runs_) {
    AdamW a{run.of(holding_.values), run.of(holding_.gradients), run.of(holding_.shard(m)), run.of(holding_.shard(v)),
            state};
    a.beta1 = static_cast<float>(config_.beta1);
    a.beta2 = static_cast<float>(config_.beta2);
    a.eps = static_cast<float>(config_.eps);
    a.weight_decay = run.decay ? static_cast<float>(config_.weight_decay) : 0;
    if (holding_.copies()) a.weights = run.of(holding_.weights);
    a.site = {.seed = seed_, .site = site_of("adamw.rounding")};
    a.first_element = run.first.offset;
    adamw_kernel(a, ctx);
  }
}

}  // namespace ring
