#include "model/gated_delta_net.h"

#include <cmath>

namespace ring {
namespace {

std::vector<Linear::Output> delta_outputs(const ModelConfig& c) {
  const std::int64_t keys = c.gated_delta_net.keys(), values = c.gated_delta_net.values();
  return {{"wq", keys, weight_std(c, c.width, keys, false, false)},
          {"wk", keys, weight_std(c, c.width, keys, false, false)},
          {"wv", values, weight_std(c, c.width, values, true, false)}};
}

std::vector<Linear::Output> plain_outputs(const ModelConfig& c, const std::vector<std::string>& names,
                                          std::int64_t channels) {
  std::vector<Linear::Output> outputs;
  for (const std::string& name : names)
    outputs.push_back({name, channels, weight_std(c, c.width, channels, false, false)});
  return outputs;
}

// Adds the convolution's weights. They are a vector, so that weight decay and Muon's update of matrices do not apply.
// The initial variance is PyTorch's default, 1 / (3 K).
Param& conv_weights(const ParamPrefix& at, const GatedDeltaNetConfig& g) {
  const Init init{Init::Kind::normal, 1 / std::sqrt(3 * static_cast<float>(g.conv_kernel))};
  const auto part = [&](const char* name, std::int64_t channels) {
    return LogicalParam{at(name), 0, channels * g.conv_kernel, init};
  };
  return at.params.add({part("conv_q", g.keys()), part("conv_k", g.keys()), part("conv_v", g.values())}, 0,
                       {.cut = Cut::outputs});
}

// Adds a parameter with one number per value head, initially uniform in [low, high].
Param& head_vector(const ParamPrefix& at, const char* name, std::int64_t heads, double low, double high) {
  const Init init{.kind = Init::Kind::uniform, .low = static_cast<float>(low), .high = static_cast<float>(high)};
  return at.params.add({{at(name), 0, heads, init}}, 0, {.cut = Cut::outputs});
}

}  // namespace

// The gated norm multiplies by its weights, which start at 1, even with model.norm_zero_centered (as in Qwen3-Next).
// The initial decay rates exp(log_decay) cover [1, 16], and the initial steps softplus(dt_bias) about [0.001, 0.1], as
// in Mamba-2 (Dao and Gu 2024). Here, both are uniform on a logarithmic scale.
GatedDeltaNet::GatedDeltaNet(const ParamPrefix& at, const ModelConfig& c, std::int64_t layer)
    : rule_{c.gated_delta_net.key_heads,
            c.gated_delta_net.value_heads,
            c.gated_delta_net.key_width,
            c.gated_delta_net.value_width,
            1 / std::sqrt(static_cast<float>(c.gated_delta_net.key_width)),
            layer},
      conv_kernel_(c.gated_delta_net.conv_kernel),
      max_beta_(c.gated_delta_net.negative_eigenvalues ? 2 : 1),
      eps_(static_cast<float>(c.gated_delta_net.norm_eps > 0 ? c.gated_delta_net.norm_eps : c.norm_eps)),
      qkv_(at, delta_outputs(c), c.width, false, Cut::outputs, c.lora),
      conv_(&conv_weights(at, c.gated_delta_net)),
      ab_(at, plain_outputs(c, {"wa", "wb"}, rule_.value_heads), c.width, false, Cut::outputs, c.lora),
      log_decay_(&head_vector(at, "log_decay", rule_.value_heads, 0, std::log(16.0))),
      dt_bias_(&head_vector(at, "dt_bias", rule_.value_heads, std::log(0.001), std::log(0.1))),
      gate_(at, plain_outputs(c, {"wz"}, c.gated_delta_net.values()), c.width, false, Cut::outputs, c.lora),
      norm_(&at.params.add({{at("norm.weight"), 0, rule_.value_width, {Init::Kind::ones}}}, 0)),
      out_(at, {{"wo", c.width, weight_std(c, c.gated_delta_net.values(), c.width, true, true)}},
           c.gated_delta_net.values(), false, Cut::inputs, c.lora) {}

ParamList GatedDeltaNet::parameters() const {
  ParamList all = qkv_.parameters();
  all += {conv_};
  all += ab_.parameters();
  all += {log_decay_, dt_bias_};
  all += gate_.parameters();
  all += {norm_};
  return all += out_.parameters();
}

void GatedDeltaNet::restrict_to_slices(std::int64_t slices) {
  rule_.key_heads /= slices;
  rule_.value_heads /= slices;
}

Var GatedDeltaNet::mix(Run& run, const Var& x, const Sequences& seqs, const Var& residual, const CarriedState& inputs,
                       const CarriedState& state) const {
  const Var qkv = short_conv(run, qkv_(run, x), conv_->var, seqs, inputs, rule_.layer);
  const Var gates = delta_gates(run, ab_(run, x), log_decay_->var, dt_bias_->var, max_beta_);
  const Var y = gated_delta(run, qkv, gates, seqs, rule_, state);
  return out_(run, gated_norm(run, y, gate_(run, x), norm_->var, eps_), residual);
}

Var GatedDeltaNet::operator()(Run& run, const Var& x, const Sequences& seqs, const Var& residual, ForwardPass&) const {
  return mix(run, x, seqs, residual, {}, {});
}

Var GatedDeltaNet::operator()(Run& run, const Var& x, const Sequences& seqs, const Var& residual, ForwardPass&,
                              LayerCache& cache, const std::vector<std::int32_t>& lengths) const {
  for (const std::int32_t n : lengths)
    RING_CHECK((n > 0) == (lengths[0] > 0), "a cache where some sequences are empty and others are not");
  const bool empty = lengths[0] == 0;
  Var final_inputs, final_state;
  const auto carried = [empty](const Tensor& memory, Var& final) {
    return CarriedState{.initial = empty ? Var{} : in_place(memory), .final = &final, .memory = memory};
  };
  return mix(run, x, seqs, residual, carried(cache.inputs, final_inputs), carried(cache.state, final_state));
}

LayerCache GatedDeltaNet::make_cache(std::int64_t batch, std::int64_t, std::span<const LayerCache>,
                                     const ExecContext& ctx, KvCacheType) const {
  const std::int64_t channels = 2 * rule_.key_heads * rule_.key_width + rule_.value_heads * rule_.value_width;
  LayerCache cache;
  cache.inputs = ctx.empty({batch, conv_kernel_ - 1, channels}, DType::f32, Lifetime::run);
  cache.state = ctx.empty({batch, rule_.value_heads, rule_.key_width, rule_.value_width}, DType::f32, Lifetime::run);
  return cache;
}

}  // namespace ring
