#include "model/config.h"

#include <algorithm>

#include "core/check.h"
#include "core/fields.h"
#include "model/architecture_names.h"
#include "model/layer_names.h"

namespace ring {

namespace {

struct ScalingKeys {
  RopeScaling scaling;
  std::vector<std::string> keys;  // keys of model.rope other than theta and scaling
};

const std::vector<ScalingKeys>& scaling_keys() {
  static const std::vector<ScalingKeys> all = {
      {RopeScaling::none, {}},
      {RopeScaling::linear, {"factor"}},
      {RopeScaling::llama3, {"factor", "low_freq_factor", "high_freq_factor", "original_context"}},
      {RopeScaling::yarn, {"factor", "original_context", "beta_fast", "beta_slow", "attention_factor"}},
      {RopeScaling::dynamic, {"factor", "original_context"}}};
  return all;
}

// Adds a problem for each key that differs from its default although the kind of scaling does not read it.
void add_foreign_keys(const RopeConfig& c, std::vector<SettingProblem>& errors) {
  RopeConfig given = c, plain;
  const config::Node mine = bind_config(given), defaults = bind_config(plain);
  const auto scaling = std::ranges::find(mine.fields, "scaling", &config::Field::name);
  const auto reads = [&](const ScalingKeys& s, const std::string& key) { return std::ranges::count(s.keys, key) > 0; };
  const ScalingKeys& here = *std::ranges::find(scaling_keys(), c.scaling, &ScalingKeys::scaling);
  for (std::size_t i = 0; i < mine.fields.size(); ++i) {
    const std::string& key = mine.fields[i].name;
    const std::string value = config::to_text(mine.fields[i].node.get());
    const std::string unset = config::to_text(defaults.fields[i].node.get());
    const bool always = key == "theta" || key == "scaling" || key == "partial_rotary_factor";
    if (always || value == unset || reads(here, key)) continue;
    errors.push_back(
        inherited_setting(key, "scaling", unset,
                          str(key, ": ", value, " has no effect with scaling: ", config::to_text(scaling->node.get()),
                              ". Set model.rope.scaling to the intended kind, such as yarn, or leave ", key, " out")));
  }
}

}  // namespace

void RopeConfig::fields(Fields& f) {
  f("theta", theta, "base of the frequencies theta^(-2i/D)", in_range(1, 1e15));
  f("scaling", scaling, "how to extend positions beyond the trained context",
    choices<RopeScaling>({{"none", RopeScaling::none},
                          {"linear", RopeScaling::linear},
                          {"llama3", RopeScaling::llama3},
                          {"yarn", RopeScaling::yarn},
                          {"dynamic", RopeScaling::dynamic}}));
  f("factor", factor, "factor by which the context is extended; dynamic: how fast theta grows beyond it",
    in_range(1, 1e6), docs_page("training.md#positions-beyond-a-trained-context"));
  f("low_freq_factor", low_freq_factor,
    "llama3: frequencies with wavelengths above original_context / this are divided by factor", in_range(1e-6, 1e6));
  f("high_freq_factor", high_freq_factor,
    "llama3: frequencies with wavelengths below original_context / this are unchanged", in_range(1e-6, 1e6));
  f("original_context", original_context, "llama3, yarn, dynamic: context of the original training, in tokens",
    in_range(1, 1 << 30));
  f("beta_fast", beta_fast, "yarn: frequencies with more turns than this over the original context are unchanged",
    in_range(1e-6, 1e6));
  f("beta_slow", beta_slow,
    "yarn: frequencies with fewer turns than this over the original context are divided by factor",
    in_range(1e-6, 1e6));
  f("attention_factor", attention_factor, "yarn: factor applied to rotated queries and keys; 0 = 0.1 ln(factor) + 1",
    in_range(0, 1e6));
  f("partial_rotary_factor", partial_rotary_factor,
    "share of a head's channels that is rotated, from the first channel on; 0 = none", in_range(0, 1));
}

void RopeConfig::validate(std::vector<SettingProblem>& errors) const {
  add_foreign_keys(*this, errors);
  if (scaling == RopeScaling::llama3 && high_freq_factor <= low_freq_factor)
    errors.push_back(str("high_freq_factor: ", high_freq_factor, " is not above low_freq_factor = ", low_freq_factor));
  if (scaling == RopeScaling::yarn && theta <= 1) errors.push_back("theta: yarn requires a value above 1");
  if (scaling == RopeScaling::yarn && beta_fast <= beta_slow)
    errors.push_back(str("beta_fast: ", beta_fast, " is not above beta_slow = ", beta_slow));
}

void LayerRopeConfig::fields(Fields& f) {
  f("layers", layers, "layers, counted from 0: numbers and ranges (0,4-7), every 4 from 3, or both", non_empty());
  f("rope", rope, "rotary position embedding of these layers, instead of model.rope");
}

namespace {

void norm_fields(ModelConfig& c, Fields& f) {
  f("norm", c.norm, "normalisation layers: LayerNorm or RMSNorm",
    choices<NormKind>({{"layer", NormKind::layer}, {"rms", NormKind::rms}}));
  f("norm_place", c.norm_place, "where blocks have norms; sub: as in MAGNETO, sandwich: Gemma 2, reordered: OLMo 2",
    choices<NormPlace>({{"pre", NormPlace::pre},
                        {"post", NormPlace::post},
                        {"sub", NormPlace::sub},
                        {"sandwich", NormPlace::sandwich},
                        {"reordered", NormPlace::reordered},
                        {"reordered_attention", NormPlace::reordered_attention}}),
    docs_page("training.md#settings-of-published-families"));
  f("norm_eps", c.norm_eps, "epsilon added to the variance", in_range(1e-30, 1));
  f("norm_zero_centered", c.norm_zero_centered, "RMSNorm multiplies by 1 + weight, and weights start at 0 (Gemma)");
}

}  // namespace

void ModelConfig::fields(Fields& f) {
  if (architecture_names().size() > 1)
    f("architecture", architecture, "network architecture", one_of(architecture_names()));
  f("vocab_size", vocab_size, "tokens in the vocabulary; 0 = the tokenizer's", in_range(0, 1 << 30));
  f("context", context, "tokens per training sequence", in_range(1, 1 << 30));
  f("layers", layers, "decoder blocks", in_range(1, 10000));
  f("width", width, "channels of the residual stream", in_range(1, 1 << 20));
  f("heads", heads, "query heads", in_range(1, 1 << 16));
  f("kv_heads", kv_heads, "key/value heads (grouped-query attention); 0 = heads", in_range(0, 1 << 16));
  f("head_dim", head_dim, "channels per head, a multiple of 8; 0 = width / heads", in_range(0, 1 << 16));
  f("mlp_width", mlp_width,
    "hidden channels of the MLP; 0 = 4 x width, or 8/3 x width rounded up to 32 (swiglu, geglu_tanh)",
    in_range(0, 1 << 24));
  norm_fields(*this, f);
  f("positions", positions, "how positions are encoded",
    choices<Positions>({{"learned", Positions::learned}, {"rope", Positions::rope}, {"none", Positions::none}}));
  f("rope", rope, "rotary position embedding");
  f("rope_layers", rope_layers, "layers with a different rope; if several entries name a layer, the last one applies",
    at_most_items(1024));
  f("attention", attention, "pairs of tokens that attention keeps, in all layers");
  f("attention_layers", attention_layers,
    "layers with different attention; if several entries name a layer, the last one applies", at_most_items(1024));
  f("mixers", mixers, "the layer that mixes tokens, by block; the list repeats; empty = attention in all blocks",
    choices<Mixer>({{"attention", Mixer::attention}, {"gated_delta_net", Mixer::gated_delta_net}}), at_most_items(1024),
    docs_page("linear_attention.md#what-a-layer-computes"));
  f("gated_delta_net", gated_delta_net, "linear attention of the blocks for which model.mixers says gated_delta_net");
  f("mlp", mlp, "activation of the MLP",
    choices<Mlp>({{"gelu", Mlp::gelu},
                  {"gelu_tanh", Mlp::gelu_tanh},
                  {"swiglu", Mlp::swiglu},
                  {"geglu_tanh", Mlp::geglu_tanh},
                  {"relu2", Mlp::relu2}}));
  f("biases", biases, "projections with a bias; all: LayerNorm too",
    choices<Biases>({{"none", Biases::none}, {"all", Biases::all}, {"qkv", Biases::qkv}}));
  f("qk_norm", qk_norm, "apply RMSNorm to queries and keys");
  f("qk_norm_over", qk_norm_over, "channels that qk_norm normalizes together: one head's, or all heads' (OLMo 2)",
    choices<QkNormOver>({{"head", QkNormOver::head}, {"projection", QkNormOver::projection}}));
  f("learned_sinks", learned_sinks,
    "add one learned logit per head to attention's softmax, and drop its probability (gpt-oss)",
    docs_page("training.md#settings-of-published-families"));
  f("attention_output_gate", attention_output_gate,
    "multiply attention's output by the sigmoid of a projection of the layer's input (Qwen3.5)",
    docs_page("training.md#settings-of-published-families"));
  f("attention_scale", attention_scale, "scores of attention are q.k x this; 0 = 1 / sqrt(head_dim)", in_range(0, 1e6));
  f("attention_soft_cap", attention_soft_cap,
    "scores become cap x tanh(score / cap) (Gemma 2); 0 = no cap; dense attention and windows only", in_range(0, 1e6));
  f("logit_soft_cap", logit_soft_cap, "logits become cap x tanh(logit / cap) (Gemma 2); 0 = no cap", in_range(0, 1e6));
  f("embedding_scale", embedding_scale, "multiplier of token embeddings; sqrt(width) in Gemma", in_range(1e-6, 1e6));
  f("tied_embeddings", tied_embeddings, "use the token embedding as the output head's weight");
  f("dropout", dropout, "dropout rate of the embedding and of each sublayer's output", in_range(0, 0.95));
  f("attention_dropout", attention_dropout, "dropout rate of attention probabilities, after the softmax",
    in_range(0, 0.95));
  f("init", init, "initialisation scheme of matrices",
    choices<InitScheme>({{"normal", InitScheme::normal},
                         {"depth_scaled", InitScheme::depth_scaled},
                         {"magneto", InitScheme::magneto}}));
  f("init_std", init_std, "standard deviation for normal and depth_scaled", in_range(1e-20, 1000));
  f("lora", lora, "low-rank adapters of linear layers (LoRA): only these are trained, all other weights are frozen");
}

namespace {

// Upper bound that keeps byte counts of weights, gradients and moments within 64 bits; far beyond what a machine holds.
constexpr double kMaxParameters = 0x1p50;

// Counts parameters without biases and norms. A double, because the product of the largest settings exceeds 64 bits.
double count_of_parameters(const ModelConfig& c) {
  const auto width = static_cast<double>(c.width), dim = static_cast<double>(c.head_dim);
  const std::int64_t query_matrices = c.attention_output_gate ? 3 : 2;
  const double attention = static_cast<double>(query_matrices * c.heads + 2 * c.kv_heads) * dim * width;
  const GatedDeltaNetConfig& g = c.gated_delta_net;
  const double states = has_gated_delta_net(c) ? static_cast<double>(2 * g.key_heads + 3 * g.value_heads) *
                                                     static_cast<double>(std::max(g.key_width, g.value_width)) *
                                                     static_cast<double>(c.width + g.conv_kernel)
                                               : 0;
  const double mlp = static_cast<double>(is_gated(c.mlp) ? 3 : 2) * width * static_cast<double>(c.mlp_width);
  const double embeddings = static_cast<double>(2 * c.vocab_size + c.context) * width;
  return static_cast<double>(c.layers) * (std::max(attention, states) + mlp) + embeddings;
}

std::string wrong_layers(const std::string& list, std::int64_t layers) {
  try {
    parse_layer_list(list, layers);
    return "";
  } catch (const Error& e) {
    return e.what();
  }
}

// Returns the nearest fitting values below and above `count`, up to `max`, for advice: "4 or 8"; empty if there are
// none.
std::string nearest(std::int64_t count, std::int64_t max, const auto& fits) {
  std::int64_t below = std::min(count - 1, max), above = count + 1;
  while (below > 0 && !fits(below)) --below;
  while (above <= max && !fits(above)) ++above;
  const std::string less = below > 0 ? str(below) : "", more = above <= max ? str(above) : "";
  return less + (less.empty() || more.empty() ? "" : " or ") + more;
}

// Returns the problem if model.heads does not divide the width into multiples of 8 channels, else "". Call only if
// head_dim is 0.
std::string wrong_heads(const ModelConfig& c) {
  const auto fits = [&](std::int64_t heads) { return c.width % heads == 0 && c.width / heads % 8 == 0; };
  if (fits(c.heads)) return "";
  const std::string others = nearest(c.heads, c.width, fits);
  return str("heads: ", c.heads, " does not divide model.width = ", c.width,
             " into multiples of 8 channels: ", others.empty() ? "" : "use " + others + ", or ", "set model.head_dim");
}

std::string wrong_head_dim(const ModelConfig& c) {
  if (c.head_dim == 0) return wrong_heads(c);
  const auto fits = [](std::int64_t channels) { return channels % 8 == 0; };
  return fits(c.head_dim) ? ""
                          : str("head_dim: ", c.head_dim, " is not a multiple of 8. Use ",
                                nearest(c.head_dim, c.head_dim + 8, fits));
}

std::string wrong_kv_heads(const ModelConfig& c) {
  const auto fits = [&](std::int64_t kv_heads) { return c.heads % kv_heads == 0; };
  return c.kv_heads == 0 || fits(c.kv_heads) ? ""
                                             : str("kv_heads: ", c.kv_heads, " does not divide model.heads = ", c.heads,
                                                   ". Use ", nearest(c.kv_heads, c.heads, fits));
}

constexpr double kMinSoftCap = 1e-3;  // so that the inverse of a cap cannot overflow f32

void check_soft_caps(const ModelConfig& c, std::vector<SettingProblem>& errors) {
  for (const auto& [key, cap] :
       {std::pair{"attention_soft_cap", c.attention_soft_cap}, std::pair{"logit_soft_cap", c.logit_soft_cap}})
    if (cap > 0 && cap < kMinSoftCap)
      errors.push_back(str(key, ": ", cap, " is below ", kMinSoftCap, ". Use a larger cap, or 0 for none"));
  const auto capable = [](const AttentionConfig& a) {
    return a.pools.empty() && (a.kind == "dense" || a.kind == "window");
  };
  if (c.attention_soft_cap > 0 &&
      (!capable(c.attention) || !std::ranges::all_of(c.attention_layers, capable, &LayerAttentionConfig::attention)))
    errors.push_back(str("attention_soft_cap: ", c.attention_soft_cap,
                         ", but only dense attention and windows have a soft cap. Set it to 0, or use attention kind "
                         "dense or window without pools in all layers"));
}

void check_rope_layers(const ModelConfig& c, std::vector<SettingProblem>& errors) {
  if (!c.rope_layers.empty() && c.positions != Positions::rope)
    errors.push_back(unused_setting("rope_layers: has no effect without model.positions: rope. Leave it out"));
  for (std::size_t i = 0; i < c.rope_layers.size(); ++i) {
    const LayerRopeConfig& entry = c.rope_layers[i];
    if (const std::string wrong = wrong_layers(entry.layers, c.layers); !wrong.empty())
      errors.push_back(str("rope_layers[", i, "].layers: ", wrong));
    check_attention_layers(str("rope_layers[", i, "].layers"), entry.layers, c.layers, attention_layers_of(c), errors);
    if (c.rope.scaling == RopeScaling::dynamic || entry.rope.scaling == RopeScaling::dynamic)
      errors.push_back(str("rope_layers[", i, "]: layers cannot differ with rope.scaling: dynamic. Use yarn"));
  }
}

// Adds a problem for each attention setting that is set although no layer has attention.
void check_unused_attention(const ModelConfig& c, std::vector<SettingProblem>& errors) {
  if (!attention_layers_of(c).empty()) return;
  for (const auto& [key, given] : {std::pair{"qk_norm", c.qk_norm},
                                   {"learned_sinks", c.learned_sinks},
                                   {"attention_output_gate", c.attention_output_gate},
                                   {"attention_scale", c.attention_scale > 0},
                                   {"attention_soft_cap", c.attention_soft_cap > 0},
                                   {"attention_dropout", c.attention_dropout > 0}})
    if (given)
      errors.push_back(unused_setting(
          str(key, ": has no effect, because all layers are gated delta nets (model.mixers). Leave it out")));
}

}  // namespace

void ModelConfig::validate(std::vector<SettingProblem>& errors) const {
  for (const std::string& wrong : {wrong_kv_heads(*this), wrong_head_dim(*this)})
    if (!wrong.empty()) errors.push_back(wrong);
  if (positions != Positions::rope && rope.scaling != RopeScaling::none)
    errors.push_back("rope.scaling: requires model.positions: rope");
  else if (positions != Positions::rope && rope.theta != RopeConfig{}.theta)
    errors.push_back(unused_setting("rope.theta: has no effect without model.positions: rope. Leave it out"));
  if (positions == Positions::rope && rope.scaling == RopeScaling::dynamic && context > rope.original_context)
    errors.push_back(
        str("context: ", context, " exceeds model.rope.original_context = ", rope.original_context,
            ", but rope.scaling: dynamic extends the context only in generation and evaluation. Train with yarn"));
  const auto pools = [](const AttentionConfig& a) { return !a.pools.empty(); };
  if (attention_dropout > 0 &&
      (pools(attention) || std::ranges::any_of(attention_layers, pools, &LayerAttentionConfig::attention)))
    errors.push_back(str("attention_dropout: ", attention_dropout,
                         ", but attention with pools cannot drop probabilities. Set it to 0 (model.dropout still "
                         "applies), or leave the pools out"));
  for (std::size_t i = 0; i < attention_layers.size(); ++i)
    if (const std::string wrong = wrong_layers(attention_layers[i].layers, layers); !wrong.empty())
      errors.push_back(str("attention_layers[", i, "].layers: ", wrong));
  check_rope_layers(*this, errors);
  if (norm_zero_centered && norm != NormKind::rms)
    errors.push_back("norm_zero_centered: requires model.norm: rms. Set that, or leave norm_zero_centered out");
  if (qk_norm_over != QkNormOver::head && !qk_norm)
    errors.push_back(unused_setting("qk_norm_over: projection has no effect without model.qk_norm. Leave it out"));
  if (norm_place == NormPlace::reordered_attention && !has_gated_delta_net(*this))
    errors.push_back("norm_place: reordered_attention requires gated delta nets (model.mixers). Use reordered");
  check_soft_caps(*this, errors);
  check_unused_attention(*this, errors);
  check_targets(lora, linear_names(*this), errors);
  if (const ModelConfig whole = resolved(); !has_gated_delta_net(*this))
    validate_unused(gated_delta_net, errors);
  else
    validate_mixers({whole.gated_delta_net, attention, attention_layers, layers, attention_layers_of(*this)}, errors);
  if (const double count = count_of_parameters(resolved()); errors.empty() && count > kMaxParameters)
    errors.push_back(str("width: the model would have ", count, " parameters, but at most ", kMaxParameters,
                         " are supported. Lower layers, width, heads, head_dim, mlp_width, vocab_size or context"));
}

ModelConfig ModelConfig::resolved() const {
  ModelConfig c = *this;
  if (!c.kv_heads) c.kv_heads = c.heads;
  if (!c.head_dim) c.head_dim = c.width / c.heads;
  if (!c.mlp_width) c.mlp_width = is_gated(c.mlp) ? (c.width * 8 / 3 + 31) / 32 * 32 : 4 * c.width;
  if (has_gated_delta_net(c)) c.gated_delta_net = resolved_for(c.gated_delta_net, c.heads, c.head_dim);
  if (!c.lora.alpha) c.lora.alpha = 2 * static_cast<double>(c.lora.rank);
  return c;
}

std::vector<const RopeConfig*> ropes_of(const ModelConfig& c) {
  std::vector<const RopeConfig*> of_layer(static_cast<std::size_t>(c.layers), &c.rope);
  for (const LayerRopeConfig& entry : c.rope_layers)
    for (const std::int64_t layer : parse_layer_list(entry.layers, c.layers))
      of_layer[static_cast<std::size_t>(layer)] = &entry.rope;
  return of_layer;
}

std::int64_t rotary_channels(const RopeConfig& c, std::int64_t head_dim) {
  return static_cast<std::int64_t>(static_cast<double>(head_dim) * c.partial_rotary_factor) / 2 * 2;
}

Mixer mixer_of(const ModelConfig& c, std::int64_t layer) {
  return c.mixers.empty() ? Mixer::attention : c.mixers[static_cast<std::size_t>(layer) % c.mixers.size()];
}

NormPlace norm_place_of(const ModelConfig& c, std::int64_t layer) {
  if (c.norm_place != NormPlace::reordered_attention) return c.norm_place;
  return mixer_of(c, layer) == Mixer::attention ? NormPlace::reordered : NormPlace::pre;
}

std::vector<std::int64_t> attention_layers_of(const ModelConfig& c) {
  std::vector<std::int64_t> all;
  for (std::int64_t layer = 0; layer < c.layers; ++layer)
    if (mixer_of(c, layer) == Mixer::attention) all.push_back(layer);
  return all;
}

std::vector<std::string> linear_names(const ModelConfig& c) {
  std::vector<std::string> names = {"wq", "wk", "wv"};
  if (has_gated_delta_net(c)) names.insert(names.end(), {"wa", "wb", "wz"});
  names.push_back("wo");
  if (is_gated(c.mlp)) names.push_back("gate");
  names.insert(names.end(), {"up", "down"});
  return names;
}

bool has_gated_delta_net(const ModelConfig& c) { return std::ssize(attention_layers_of(c)) < c.layers; }

std::vector<std::int64_t> possible_slices(const ModelConfig& c) {
  if (c.qk_norm && c.qk_norm_over == QkNormOver::projection) return {1};  // the norm covers all heads
  std::vector<std::int64_t> possible;
  const std::int64_t states = has_gated_delta_net(c) ? c.gated_delta_net.key_heads : 0;  // a divisor of value_heads
  for (std::int64_t n = 1; n <= c.kv_heads; ++n)
    if (states % n == 0 && c.heads % n == 0 && c.kv_heads % n == 0 && c.mlp_width % n == 0) possible.push_back(n);
  return possible;
}

}  // namespace ring
