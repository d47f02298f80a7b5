#include "trainer/optimizer.h"

#include "core/philox.h"
#include "kernels/optimizer.h"

namespace ring {

Optimizer::Optimizer(Parameters& params, const OptimizerConfig& config, std::uint64_t seed, const Context& ctx,
                     Communicator* tp)
    : m(ctx.zeros(params.values.shape(), config.moments)),
      v(ctx.zeros(params.values.shape(), config.moments)),
      state(ctx.zeros({sizeof(StepState)}, DType::u8)),
      params_(params),
      config_(config),
      seed_(seed),
      tp_(tp),
      counted_(counted_ranges(params)) {}

// The squared norm of the whole gradient, the same bits on every process.
void Optimizer::add_norm(const Context& ctx) {
  for (const FlatRange& r : counted_)
    squared_norm_kernel({params_.gradients.narrow(0, r.begin, r.end - r.begin), state}, ctx);
  if (!tp_ || tp_->size() == 1) return;
  const Tensor own = state.narrow(0, offsetof(StepState, squared_norm), sizeof(StepState::squared_norm));
  const Tensor sum = ctx.empty({1});
  ctx.stream.impl().copy(sum.raw(), own.raw(), own.bytes());
  tp_->all_reduce(sum, Reduce::sum, ctx.stream.record()).wait(ctx.stream);
  ctx.stream.impl().copy(own.raw(), sum.raw(), own.bytes());
}

void Optimizer::update(const Tensor& loss, const Context& ctx) {
  add_norm(ctx);
  clip_factor_kernel({state, static_cast<float>(config_.clip), loss}, ctx);
  const bool copies = params_.weights.raw() != params_.values.raw();
  const auto part = [&](std::int64_t begin, std::int64_t end, double decay) {
    if (begin == end) return;
    const auto range = [&](const Tensor& t) { return t.narrow(0, begin, end - begin); };
    AdamW a{range(params_.values), range(params_.gradients), range(m), range(v), state};
    a.beta1 = static_cast<float>(config_.beta1);
    a.beta2 = static_cast<float>(config_.beta2);
    a.eps = static_cast<float>(config_.eps);
    a.weight_decay = static_cast<float>(decay);
    if (copies) a.weights = range(params_.weights);
    a.site = {.seed = seed_, .site = site_of("adamw.rounding")};
    a.first_element = begin;
    adamw_kernel(a, ctx);
  };
  part(0, params_.matrices_begin(), 0);
  part(params_.matrices_begin(), params_.values.numel(), config_.weight_decay);
}

}  // namespace ring
