#include "optim/adamw.h"

#include "core/philox.h"
#include "kernels/optimizer.h"

namespace ring {
namespace {

class AdamWRule final : public UpdateRule {
 public:
  AdamWRule(const OptimizerConfig& config, std::uint64_t seed) : config_(config), seed_(seed) {}

  std::vector<StateKind> states() const override {
    return {moment_kind("m", config_.moments, Fp8Moment::e4m3), moment_kind("v", config_.moments, Fp8Moment::e4m4)};
  }
  void update(const ParameterUpdate& u, const ExecContext& ctx) const override {
    AdamW a{u.values, u.gradients, u.states[0], u.states[1], u.step};
    a.beta1 = static_cast<float>(config_.beta1);
    a.beta2 = static_cast<float>(config_.beta2);
    a.eps = static_cast<float>(config_.eps);
    a.weight_decay = u.weight_decay;
    a.lr_scale = u.lr_scale;
    a.weights = u.weights;
    a.m_scales = u.scales[0];
    a.v_scales = u.scales[1];
    a.site = {.seed = seed_, .site = site_of("adamw.rounding")};
    a.first_element = u.first_element;
    adamw_kernel(a, ctx);
  }

 private:
  OptimizerConfig config_;
  std::uint64_t seed_;
};

}  // namespace

OptimizerKind adamw() {
  return [](const OptimizerConfig& config, std::uint64_t seed) { return std::make_unique<AdamWRule>(config, seed); };
}

}  // namespace ring
