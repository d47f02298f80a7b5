#include "trainer/optimizer.h"

#include "kernels/elementwise.h"
#include "kernels/optimizer.h"

namespace ring {

Optimizer::Optimizer(Parameters& params, const OptimizerConfig& config, const Context& ctx)
    : m(ctx.zeros(params.values.shape())),
      v(ctx.zeros(params.values.shape())),
      params_(params),
      config_(config),
      state_(ctx.zeros({sizeof(StepState)}, DType::u8)) {}

void Optimizer::begin(std::int64_t step, double lr, double valid_tokens, const Context& ctx) {
  StepState s;
  s.step = static_cast<std::uint32_t>(step);
  s.lr = static_cast<float>(lr);
  s.valid_tokens = static_cast<float>(valid_tokens);
  ctx.stream.impl().copy(state_.raw(), &s, sizeof s);
}

void Optimizer::update(const Tensor& loss, const Context& ctx) {
  const Tensor poison = ctx.empty({1});  // 0, or NaN when the loss is not finite: then the norm is NaN, too
  axpby_kernel({loss, {}, poison, 0.0f, 0.0f}, ctx);
  squared_norm_kernel({poison, state_}, ctx);
  squared_norm_kernel({params_.gradients, state_}, ctx);
  clip_factor_kernel({state_, static_cast<float>(config_.clip)}, ctx);
  const std::int64_t size = params_.values.numel(), matrices = params_.matrices_begin();
  const auto part = [&](std::int64_t begin, std::int64_t end, double decay) {
    if (begin == end) return;
    AdamW a{params_.values.narrow(0, begin, end - begin), params_.gradients.narrow(0, begin, end - begin),
            m.narrow(0, begin, end - begin), v.narrow(0, begin, end - begin), state_};
    a.beta1 = static_cast<float>(config_.beta1);
    a.beta2 = static_cast<float>(config_.beta2);
    a.eps = static_cast<float>(config_.eps);
    a.weight_decay = static_cast<float>(decay);
    adamw_kernel(a, ctx);
  };
  part(0, matrices, 0);
  part(matrices, size, config_.weight_decay);
}

StepState Optimizer::read_state(const Context& ctx) const {
  StepState s;
  ctx.stream.impl().copy(&s, state_.raw(), sizeof s);
  ctx.stream.synchronize();  // host waits: log
  return s;
}

}  // namespace ring
