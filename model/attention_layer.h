#pragma once
// The attention layer: projections, and attention over its pattern with the variants that its section of the settings
// turns on.

#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "autograd/ops.h"
#include "model/attended_heads.h"
#include "model/attention_variant.h"
#include "model/config.h"
#include "model/kv_cache.h"
#include "model/layers.h"
#include "model/mixer.h"
#include "model/params.h"

namespace ring {

class AttentionLayer final : public MixerLayer {
 public:
  // pattern: the pattern of the layer's section, for all heads. dropout_site: site of the dropout masks on attention
  // weights.
  AttentionLayer(const ParamPrefix&, const ModelConfig& resolved, std::int64_t layer, const Pattern&,
                 const Tensor& inv_freq, std::uint32_t dropout_site);
  // Returns attention(x) + residual, [N,C]; residual may be none.
  Var operator()(Run&, const Var& x, const Sequences&, const Var& residual, ForwardPass&) const override;
  Var operator()(Run&, const Var& x, const Sequences&, const Var& residual, ForwardPass&, LayerCache&,
                 const std::vector<std::int32_t>& lengths) const override;
  LayerCache make_cache(std::int64_t batch, std::int64_t capacity, std::span<const LayerCache> before,
                        const ExecContext&, KvCacheType = KvCacheType::automatic) const override;
  ParamList parameters() const override;
  AttentionLayer* attention() override { return this; }
  // Returns the parameters of one variant; empty if the layer does not have it.
  ParamList parameters_of(const AttentionVariantKind&) const;
  // Returns the metric name of the loss that is added to Probes::auxiliary_loss; empty if there is none.
  std::string auxiliary_loss() const;

  // Restricts the layer to the query and KV heads of its tensor-parallel slice. The pattern is for these heads.
  void restrict_to_heads(std::int64_t heads, KvHeads, const Pattern&);
  // Sets the pattern of the layer's heads. set_step() uses a different one in steps for which a variant returns one.
  void set_pattern(const Pattern& pattern) { pattern_ = own_pattern_ = pattern; }
  // Returns the pattern that the next forward uses for the layer's heads.
  const Pattern& pattern() const { return pattern_; }
  // Changes the blocks that the heads attend over, from the next forward on. The pattern must have the same heads.
  void set_blocks(Pattern);
  // Makes the next forward attend as in this step of a run, counted from 0. Before the first call the layer attends as
  // after the last step. Returns true if this changes the next forward.
  bool set_step(std::int64_t step);
  // Returns true if the layer chooses its blocks in each forward, now or in later steps.
  bool selects() const { return own_pattern_.selects(); }
  // Called during each forward over whole sequences with the inputs of attention: once, or for groups of heads and
  // parts of the queries (AttentionWatch).
  std::function<void(const AttendedHeads&)> watch;

 private:
  struct Variant {
    const AttentionVariantKind* kind;
    std::unique_ptr<AttentionVariant> part;
  };
  // Queries, keys and values as attention multiplies them: after the norm of heads and the rotation.
  struct Qkv {
    Tensor q, k, v;
  };
  // Returns the options of the op, which stores the queries, keys and values that it multiplies in `final`.
  SelfAttention options(bool training, Qkv& final) const;
  // Runs attention with the variants from index `first` on. Takes the call as an rvalue, so that its tensors are freed
  // before the output projection.
  Var attend(AttentionLayerCall&&, const Var& qkv, std::size_t first = 0) const;
  Tensor decode(const Tensor& qkv, const NewTokens&, const LayerCache&) const;
  // Returns the output projection of attention's output y. x: the layer's input, which gates y.
  Var project(Run&, const Var& x, Var y, const Var& residual) const;

  std::int64_t layer_;
  std::int64_t heads_, kv_heads_, head_dim_;  // heads of this slice
  Pattern pattern_, own_pattern_;             // the pattern in use; the pattern of the settings
  const Tensor& inv_freq_;                    // owned by the decoder; undefined if there is no rotation
  Linear qkv_;
  Param* q_norm_ = nullptr;
  Param* k_norm_ = nullptr;
  Param* sinks_ = nullptr;      // [heads_], only with model.learned_sinks
  std::optional<Linear> gate_;  // only with model.attention_output_gate
  std::optional<Norm> sub_norm_;
  std::vector<Variant> variants_;
  Linear out_;
  float scale_;    // factor on the scores
  float dropout_;  // dropout rate on attention weights
  std::uint32_t dropout_site_;
  float eps_, norm_offset_, soft_cap_;
};

}  // namespace ring
