#include "optim/gradient_norm.h"

#include "core/step_state.h"
#include "kernels/optimizer.h"
#include "parallel/ordered_sum.h"

namespace ring {
namespace {

std::vector<Tensor> counted_gradients(const OwnedShard& shard) {
  const bool first = shard.slice.rank == 0;
  if (first && shard.gradients.flat.numel() == shard.size) return {shard.gradients.flat};
  std::vector<Tensor> out;
  for (const UpdateRange& range : shard.ranges())
    if (range.cut || first) out.push_back(range.of(shard.gradients));
  return out;
}

}  // namespace

GradientNorm::GradientNorm(const OwnedShard& shard, std::vector<Communicator*> over, const ExecContext& ctx)
    : counted_(counted_gradients(shard)), over_(std::move(over)), squares_(ctx.empty({1}, DType::f32, Lifetime::run)) {}

void GradientNorm::judge(const Tensor& step, double clip, const Tensor& loss, const ExecContext& ctx) const {
  for (const Tensor& gradients : counted_) squared_norm_kernel({gradients, step}, ctx);
  const Tensor own = step.narrow(0, offsetof(StepState, squared_norm), sizeof(float));
  for (Communicator* group : over_) {
    if (group->size() == 1) continue;
    ctx.stream.impl().copy(squares_.raw(), own.raw(), own.bytes());
    sum_in_order({squares_}, *group, ctx);
    ctx.stream.impl().copy(own.raw(), squares_.raw(), own.bytes());
  }
  judge_step_kernel({step, static_cast<float>(clip), loss}, ctx);
}

}  // namespace ring
