#include "optim/adamw.h"

#include "core/philox.h"
#include "kernels/optimizer.h"

namespace ring {
namespace {

class AdamWOptimizer final : public Optimizer {
 public:
  AdamWOptimizer(const OptimizerConfig& config, const OwnedShard& shard, std::uint64_t seed, const ExecContext& ctx)
      : m_(shard.shard(ctx.zeros({shard.size}, config.moments, Lifetime::run))),
        v_(shard.shard(ctx.zeros({shard.size}, config.moments, Lifetime::run))),
        shard_(shard),
        ranges_(shard.ranges()),
        config_(config),
        seed_(seed) {}

  void update(const Tensor& step, const ExecContext& ctx) override {
    for (const UpdateRange& range : ranges_) adamw_kernel(arguments(range, step), ctx);
  }
  std::vector<OptimizerState> states() const override { return {{"m", m_}, {"v", v_}}; }

 private:
  AdamW arguments(const UpdateRange& range, const Tensor& step) const {
    AdamW a{range.of(shard_.values), range.of(shard_.gradients), range.of(m_), range.of(v_), step};
    a.beta1 = static_cast<float>(config_.beta1);
    a.beta2 = static_cast<float>(config_.beta2);
    a.eps = static_cast<float>(config_.eps);
    a.weight_decay = range.decay ? static_cast<float>(config_.weight_decay) : 0;
    if (shard_.copies()) a.weights = range.of(shard_.weights);
    a.site = {.seed = seed_, .site = site_of("adamw.rounding")};
    a.first_element = range.first.offset;
    return a;
  }

  FlatBuffer m_, v_;  // moments
  const OwnedShard& shard_;
  std::vector<UpdateRange> ranges_;
  OptimizerConfig config_;
  std::uint64_t seed_;
};

}  // namespace

OptimizerKind adamw() {
  return {.make = [](const OptimizerConfig& config, const OwnedShard& shard, std::uint64_t seed,
                     const ExecContext& ctx) { return std::make_unique<AdamWOptimizer>(config, shard, seed, ctx); },
          .state_bytes = [](const OptimizerConfig& config) { return 2 * size_of(config.moments); }};
}

}  // namespace ring
