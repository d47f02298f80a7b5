#pragma once
// The gated delta net layer (Yang, Kautz and Hatamizadeh 2024; the form of Qwen3-Next, Qwen3.5 and Olmo Hybrid):
// linear attention with a state of fixed size.

#include "autograd/linear_attention.h"
#include "model/config.h"
#include "model/layers.h"
#include "model/mixer.h"

namespace ring {

// Computes q, k, v = SiLU(conv(x W)) and y = gated_delta(q, k, v, gates(x)); returns (norm(y) * SiLU(x Wz)) Wo.
class GatedDeltaNet final : public MixerLayer {
 public:
  // layer: index of the block, for an exchange that stores states for each layer.
  GatedDeltaNet(const ParamPrefix&, const ModelConfig& resolved, std::int64_t layer);
  Var operator()(Run&, const Var& x, const Sequences&, const Var& residual, ForwardPass&) const override;
  Var operator()(Run&, const Var& x, const Sequences&, const Var& residual, ForwardPass&, LayerCache&,
                 const std::vector<std::int32_t>& lengths) const override;
  // Returns a cache for the state and the last inputs of the convolution. Ignores `capacity` and the type of KV caches.
  LayerCache make_cache(std::int64_t batch, std::int64_t capacity, std::span<const LayerCache> before,
                        const ExecContext&, KvCacheType) const override;
  ParamList parameters() const override;

  void restrict_to_slices(std::int64_t slices) override;

 private:
  Var mix(Run&, const Var& x, const Sequences&, const Var& residual, const CarriedState& inputs,
          const CarriedState& state) const;

  GatedDeltaRule rule_;
  std::int64_t conv_kernel_;
  float max_beta_, eps_;
  Linear qkv_;
  Param* conv_;
  Linear ab_;
  Param *log_decay_, *dt_bias_;
  Linear gate_;
  Param* norm_;
  Linear out_;
};

}  // namespace ring
