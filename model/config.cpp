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
    if (key == "theta" || key == "scaling" || value == unset || reads(here, key)) continue;
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
}

void RopeConfig::validate(std::vector<SettingProblem>& errors) const {
  add_foreign_keys(*this, errors);
  if (scaling == RopeScaling::llama3 && high_freq_factor <= low_freq_factor)
    errors.push_back(str("high_freq_factor: ", high_freq_factor, " is not above low_freq_factor = ", low_freq_factor));
  if (scaling == RopeScaling::yarn && theta <= 1) errors.push_back("theta: yarn requires a value above 1");
  if (scaling == RopeScaling::yarn && beta_fast <= beta_slow)
    errors.push_back(str("beta_fast: ", beta_fast, " is not above beta_slow = ", beta_slow));
}

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
  f("mlp_width", mlp_width, "hidden channels of the MLP; 0 = 4 x width, for swiglu 8/3 x width rounded up to 32",
    in_range(0, 1 << 24));
  f("norm", norm, "normalisation layers: LayerNorm or RMSNorm",
    choices<NormKind>({{"layer", NormKind::layer}, {"rms", NormKind::rms}}));
  f("norm_place", norm_place,
    "place of norms: before each sublayer (pre), after it (post), or before and inside it (sub, MAGNETO)",
    choices<NormPlace>({{"pre", NormPlace::pre}, {"post", NormPlace::post}, {"sub", NormPlace::sub}}));
  f("norm_eps", norm_eps, "epsilon added to the variance", in_range(1e-30, 1));
  f("positions", positions, "how positions are encoded",
    choices<Positions>({{"learned", Positions::learned}, {"rope", Positions::rope}, {"none", Positions::none}}));
  f("rope", rope, "rotary position embedding");
  f("attention", attention, "pairs of tokens that attention keeps, in all layers");
  f("attention_layers", attention_layers,
    "layers with different attention; if several entries name a layer, the last one applies", at_most_items(1024));
  f("mlp", mlp, "activation of the MLP",
    choices<Mlp>({{"gelu", Mlp::gelu}, {"gelu_tanh", Mlp::gelu_tanh}, {"swiglu", Mlp::swiglu}, {"relu2", Mlp::relu2}}));
  f("biases", biases, "projections with a bias; all: LayerNorm too",
    choices<Biases>({{"none", Biases::none}, {"all", Biases::all}, {"qkv", Biases::qkv}}));
  f("qk_norm", qk_norm, "normalise queries and keys per head (RMS)");
  f("tied_embeddings", tied_embeddings, "use the token embedding as the output head's weight");
  f("dropout", dropout, "dropout rate of the embedding and of each sublayer's output", in_range(0, 0.95));
  f("attention_dropout", attention_dropout, "dropout rate of attention probabilities, after the softmax",
    in_range(0, 0.95));
  f("init", init, "initialisation scheme of matrices",
    choices<InitScheme>({{"normal", InitScheme::normal},
                         {"depth_scaled", InitScheme::depth_scaled},
                         {"magneto", InitScheme::magneto}}));
  f("init_std", init_std, "standard deviation for normal and depth_scaled", in_range(1e-20, 1000));
}

namespace {

// Upper bound that keeps byte counts of weights, gradients and moments within 64 bits; far beyond what a machine holds.
constexpr double kMaxParameters = 0x1p50;

// Counts parameters without biases and norms. A double, because the product of the largest settings exceeds 64 bits.
double count_of_parameters(const ModelConfig& c) {
  const auto width = static_cast<double>(c.width), dim = static_cast<double>(c.head_dim);
  const double attention = static_cast<double>(2 * c.heads + 2 * c.kv_heads) * dim * width;
  const double mlp = static_cast<double>(c.mlp == Mlp::swiglu ? 3 : 2) * width * static_cast<double>(c.mlp_width);
  const double embeddings = static_cast<double>(2 * c.vocab_size + c.context) * width;
  return static_cast<double>(c.layers) * (attention + mlp) + embeddings;
}

std::string wrong_layers(const LayerAttentionConfig& entry, std::int64_t layers) {
  try {
    parse_layer_list(entry.layers, layers);
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
    if (const std::string wrong = wrong_layers(attention_layers[i], layers); !wrong.empty())
      errors.push_back(str("attention_layers[", i, "].layers: ", wrong));
  if (const double count = count_of_parameters(resolved()); errors.empty() && count > kMaxParameters)
    errors.push_back(str("width: the model would have ", count, " parameters, but at most ", kMaxParameters,
                         " are supported. Lower layers, width, heads, head_dim, mlp_width, vocab_size or context"));
}

ModelConfig ModelConfig::resolved() const {
  ModelConfig c = *this;
  if (!c.kv_heads) c.kv_heads = c.heads;
  if (!c.head_dim) c.head_dim = c.width / c.heads;
  if (!c.mlp_width) c.mlp_width = c.mlp == Mlp::swiglu ? (c.width * 8 / 3 + 31) / 32 * 32 : 4 * c.width;
  return c;
}

std::vector<std::int64_t> possible_slices(const ModelConfig& c) {
  std::vector<std::int64_t> possible;
  for (std::int64_t n = 1; n <= c.kv_heads; ++n)
    if (c.heads % n == 0 && c.kv_heads % n == 0 && c.mlp_width % n == 0) possible.push_back(n);
  return possible;
}

}  // namespace ring
