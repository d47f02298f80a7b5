#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "core/check.h"
#include "core/json.h"
#include "interchange/hf/config.h"
#include "model/layer_names.h"
#include "model/rope.h"

namespace ring {
namespace {

using nlohmann::json;

constexpr int kMaxDepth = 16;
constexpr std::int64_t kMost = std::int64_t{1} << 30, kMaxLayers = 10'000;
constexpr std::size_t kShown = 120;  // maximum characters of a value in a message

// The keys of an object; null counts as missing, as in transformers.
class Keys {
 public:
  Keys(const json& j, std::string where) : j_(j), where_(std::move(where)) {}

  bool has(const char* key) const { return j_.contains(key) && !j_.at(key).is_null(); }
  bool says_null(const char* key) const { return j_.contains(key) && j_.at(key).is_null(); }
  const json& at(const char* key) const {
    if (!has(key)) fail(where_, ": ", key, " is missing");
    return j_.at(key);
  }

  std::int64_t integer(const char* key, std::int64_t max = kMost) const {
    const json& v = at(key);
    if (!v.is_number_integer() || v < 0 || v > max) wrong(key, str("a whole number up to ", max));
    return v.get<std::int64_t>();
  }
  std::int64_t count(const char* key, std::int64_t max = kMost) const {
    const std::int64_t n = integer(key, max);
    if (n == 0) wrong(key, str("a whole number from 1 to ", max));
    return n;
  }
  std::int64_t count_or(const char* key, std::int64_t other) const { return has(key) ? count(key) : other; }
  std::int64_t integer_or(const char* key, std::int64_t other) const { return has(key) ? integer(key) : other; }
  double number(const char* key) const {
    if (!at(key).is_number()) wrong(key, "a number");
    return at(key).get<double>();
  }
  double number_or(const char* key, double other) const { return has(key) ? number(key) : other; }
  bool flag_or(const char* key, bool other) const {
    if (has(key) && !at(key).is_boolean()) wrong(key, "true or false");
    return has(key) ? at(key).get<bool>() : other;
  }
  std::string text_or(const char* key, const std::string& other) const {
    if (has(key) && !at(key).is_string()) wrong(key, "a string");
    return has(key) ? at(key).get<std::string>() : other;
  }
  Keys section(const char* key) const {
    if (!at(key).is_object()) wrong(key, "an object");
    return {at(key), where_ + ": " + key};
  }

  [[noreturn]] void wrong(const char* key, const std::string& expected) const {
    fail(where_, ": ", key, ": ", shown(key), ": expected ", expected);
  }
  [[noreturn]] void problem(const std::string& text) const { fail(where_, ": ", text); }
  [[noreturn]] void refuse(const char* key, const std::string& why) const {
    fail(where_, ": ", key, ": ", shown(key), " cannot be imported: ", why);
  }

 private:
  std::string shown(const char* key) const {
    const std::string text = j_.at(key).dump(-1, ' ', true);
    return text.size() > kShown ? text.substr(0, kShown) + "..." : text;
  }
  const json& j_;
  std::string where_;
};

// The key of an unsupported feature, and the value with which the key does not change the computation. why: added to
// the error message if the key has a different value.
struct Neutral {
  const char* key;
  json value;
  const char* why;
};

// except: a key that this family supports, or ""
void refuse_what_is_missing_here(const Keys& k, std::string_view except = "") {
  static const std::vector<Neutral> all = {
      {"quantization_config", nullptr, "weights are read as F32, F16 or BF16; publish or load them dequantized"},
      {"auto_map", nullptr, "the model is computed by its own Python code"},
      {"partial_rotary_factor", 1.0, "only rotation of all channels of a head is supported"},
      {"vision_config", nullptr, "images are not supported. Save the language model alone"},
      {"use_bidirectional_attention", false, "only causal attention is supported"},
      {"clip_qkv", nullptr, "clipping of queries, keys and values is not supported"},
      {"num_experts", nullptr, "mixtures of experts are not supported"},
      {"num_local_experts", nullptr, "mixtures of experts are not supported"},
      {"scale_attn_weights", true, "scores are always divided by the square root of the head's width"},
      {"scale_attn_by_inverse_layer_idx", false, "all layers must scale their scores in the same way"},
      {"add_cross_attention", false, "attention to an encoder is not supported"},
      {"is_encoder_decoder", false, "encoders are not supported"}};
  for (const Neutral& n : all)
    if (n.key != except && k.has(n.key) && k.at(n.key) != n.value) k.refuse(n.key, n.why);
}

Family family_in(const Keys& k) {
  const std::optional<Family> family = family_of_type(k.text_or("model_type", ""));
  const std::string known = "supported are " + all_architectures();
  if (!family) {
    k.at("model_type");
    if (k.has("text_config"))
      k.refuse("model_type",
               "images and audio are not supported. Save the language model alone, with a config.json "
               "like its text_config; " +
                   known);
    k.refuse("model_type", known);
  }
  if (!k.has("architectures")) return *family;
  const json& named = k.at("architectures");
  if (named != json::array({architecture(*family)})) k.refuse("architectures", known);
  return *family;
}

struct RopeKind {
  const char* name;
  RopeScaling scaling;
};
constexpr RopeKind kRopeKinds[] = {{"linear", RopeScaling::linear},
                                   {"llama3", RopeScaling::llama3},
                                   {"yarn", RopeScaling::yarn},
                                   {"dynamic", RopeScaling::dynamic}};

// Returns YaRN's attention factor: the value of attention_factor; else, for DeepSeek's mscale and mscale_all_dim, the
// quotient of the factors that the paper's formula gives for them; else 0, which stands for the paper's own factor.
double yarn_attention_factor(const Keys& r, double factor) {
  if (r.has("attention_factor")) {
    const double given = r.number("attention_factor");
    if (given <= 0) r.wrong("attention_factor", "a number above 0");
    return given;
  }
  const double over = r.number_or("mscale", 0), under = r.number_or("mscale_all_dim", 0);
  if (over == 0 || under == 0) return 0;
  return (0.1 * over * std::log(factor) + 1) / (0.1 * under * std::log(factor) + 1);
}

// Returns the context before scaling. As in transformers, the model's key takes precedence over the key in the rope
// section. Throws Error if it is longer than the model's context.
std::int64_t original_context(const Keys& model, const Keys& r) {
  constexpr const char* kKey = "original_max_position_embeddings";
  const std::int64_t context = model.count("max_position_embeddings");
  if (!model.has(kKey) && !r.has(kKey)) return context;
  const Keys& says = model.has(kKey) ? model : r;
  const std::int64_t original = says.integer(kKey);
  if (original > context) says.wrong(kKey, str("at most max_position_embeddings, ", context));
  return original;
}

void read_yarn(const Keys& model, const Keys& r, RopeConfig& rope) {
  if (!r.flag_or("truncate", true)) r.refuse("truncate", "only a ramp between whole channels is supported");
  rope.beta_fast = r.number_or("beta_fast", rope.beta_fast);
  rope.beta_slow = r.number_or("beta_slow", rope.beta_slow);
  rope.attention_factor = yarn_attention_factor(r, rope.factor);
  rope.original_context = original_context(model, r);
}

// Returns the kind of scaling: rope_type, or `type` in files of older versions.
std::string rope_type(const Keys& r) {
  const std::string old = r.text_or("type", "default"), type = r.text_or("rope_type", old);
  if (r.has("type") && old != type) r.refuse("rope_type", str("type is '", old, "'. Remove the wrong one"));
  return type;
}

// Reads the kind of scaling and its settings from a section named `key`.
void read_scaling(const Keys& k, const Keys& r, const char* key, Family family, RopeConfig& rope) {
  const std::string type = rope_type(r);
  if (family == Family::qwen3_5)
    rope.partial_rotary_factor = r.number_or("partial_rotary_factor", rope.partial_rotary_factor);
  else if (r.number_or("partial_rotary_factor", 1) != 1)
    r.refuse("partial_rotary_factor", "this family rotates all channels of a head");
  if (type == "default") {
    if (r.number_or("factor", 1) != 1)
      r.refuse("factor", "there is no rope_type that defines how it scales positions. Set rope_type, or remove factor");
    return;
  }
  const auto* const kind = std::ranges::find(kRopeKinds, type, &RopeKind::name);
  if (kind == std::end(kRopeKinds))
    k.refuse(key, "supported kinds (rope_type) are default, linear, dynamic, llama3 and yarn");
  rope.scaling = kind->scaling;
  rope.factor = r.number("factor");
  if (!(rope.factor >= 1)) r.wrong("factor", "a number of at least 1, by which the context is extended");
  if (rope.scaling == RopeScaling::linear) return;
  if (rope.scaling == RopeScaling::yarn) return read_yarn(k, r, rope);
  if (rope.scaling == RopeScaling::dynamic) {
    rope.original_context = k.integer("max_position_embeddings");  // transformers reads no other key
    return;
  }
  rope.low_freq_factor = r.number("low_freq_factor");
  rope.high_freq_factor = r.number("high_freq_factor");
  rope.original_context = original_context(k, r);
}

bool has_sections_of_layers(const Keys& k, const char* key) {
  return k.has(key) && (k.section(key).has("full_attention") || k.section(key).has("sliding_attention"));
}

// Reads the rope settings. transformers 5 stores all of them in rope_parameters, older versions in rope_theta and
// rope_scaling. If both sections exist, transformers reads rope_scaling.
void read_rope(const Keys& k, Family family, RopeConfig& rope) {
  const bool scaling = k.has("rope_scaling") && !k.at("rope_scaling").empty(), parameters = k.has("rope_parameters");
  const char* key = scaling ? "rope_scaling" : "rope_parameters";
  rope.theta = k.number_or("rope_theta", rope.theta);
  if (family == Family::qwen3_5) rope.partial_rotary_factor = k.number_or("partial_rotary_factor", 0.25);
  if (!scaling && !parameters) return;
  for (const char* section : {"rope_scaling", "rope_parameters"})
    if (has_sections_of_layers(k, section)) k.refuse(section, "this family has the same RoPE settings in all layers");
  const Keys r = k.section(key);
  rope.theta = r.number_or("rope_theta", rope.theta);
  if (parameters && k.section("rope_parameters").number_or("rope_theta", rope.theta) != rope.theta)
    k.refuse("rope_parameters",
             str("its rope_theta differs from the one in rope_scaling or in the model, ", rope.theta));
  if (k.number_or("rope_theta", rope.theta) != rope.theta)
    r.refuse("rope_theta", str("outside of ", key, " it is ", k.number("rope_theta"), ". Remove the wrong one"));
  read_scaling(k, r, key, family, rope);
}

// Reads the rope settings of families in which layers with windows have a rotary embedding of their own. transformers 5
// stores the two in sections of rope_parameters. Older versions store that of dense layers as in other families. Layers
// with windows then have no scaling. Their theta is that of dense layers (OLMo 3) or rope_local_base_freq (Gemma 3).
PublishedRopes read_layer_ropes(const Keys& k, Family family) {
  PublishedRopes ropes;
  ropes.dense.theta = family == Family::gemma3 ? 1e6 : 5e5;
  if (!has_sections_of_layers(k, "rope_parameters")) {
    read_rope(k, family, ropes.dense);
    ropes.windows.theta = family == Family::gemma3 ? k.number_or("rope_local_base_freq", 1e4) : ropes.dense.theta;
    return ropes;
  }
  const Keys sections = k.section("rope_parameters");
  ropes.windows.theta = family == Family::gemma3 ? 1e4 : 5e5;
  for (const auto& [key, rope] :
       {std::pair{"full_attention", &ropes.dense}, std::pair{"sliding_attention", &ropes.windows}}) {
    if (!sections.has(key)) continue;
    const Keys r = sections.section(key);
    rope->theta = r.number_or("rope_theta", rope->theta);
    read_scaling(k, r, "rope_parameters", family, *rope);
  }
  return ropes;
}

bool is_qwen(Family f) { return f == Family::qwen2 || f == Family::qwen3; }

// Returns for each layer true if the layer has a window.
std::vector<bool> layers_with_windows(const Keys& k, Family family, std::int64_t layers) {
  std::vector<bool> with(static_cast<std::size_t>(layers));
  if (!k.has("layer_types") && !is_qwen(family)) {
    const std::int64_t last = family == Family::gemma2 ? 2 : family == Family::olmo3 ? 4 : 6;
    const std::int64_t period = family == Family::gemma3 ? k.count_or("sliding_window_pattern", last) : last;
    for (std::int64_t i = 0; i < layers; ++i) with[static_cast<std::size_t>(i)] = (i + 1) % period != 0;
    return with;
  }
  if (!k.has("layer_types")) {
    const std::int64_t first = k.integer_or("max_window_layers", 28);
    for (std::int64_t i = first; i < layers; ++i) with[static_cast<std::size_t>(i)] = true;
    return with;
  }
  const json& types = k.at("layer_types");
  if (!types.is_array() || std::ssize(types) != layers) k.wrong("layer_types", str("a list of ", layers, " strings"));
  for (std::size_t i = 0; i < with.size(); ++i) {
    with[i] = types[i] == "sliding_attention";
    if (!with[i] && types[i] != "full_attention")
      k.refuse("layer_types", "supported are full_attention and sliding_attention");
  }
  return with;
}

AttentionConfig window_of(std::int64_t tokens) {
  AttentionConfig a;
  a.kind = "window";
  a.window = tokens;
  return a;
}

// Returns true if config.json turns windows on. layers_with_windows() says in which layers.
bool uses_windows(const Keys& k, Family family) {
  if (is_qwen(family)) return k.flag_or("use_sliding_window", false) && !k.says_null("sliding_window");
  return (family == Family::mistral || has_layer_types(family)) && !k.says_null("sliding_window");
}

// Reads the windows. Also reads the rotary embeddings if layers with windows have one of their own.
void read_windows(const Keys& k, Family family, ModelConfig& c) {
  std::vector<bool> with(static_cast<std::size_t>(c.layers), uses_windows(k, family));
  if (with[0] && has_layer_types(family)) with = layers_with_windows(k, family, c.layers);
  const std::int64_t windows = std::ranges::count(with, true);
  const PublishedRopes ropes = has_layer_ropes(family) ? read_layer_ropes(k, family) : PublishedRopes{c.rope, c.rope};
  c.rope = windows == c.layers ? ropes.windows : ropes.dense;
  if (windows == 0) return;
  const AttentionConfig window = window_of(k.integer_or("sliding_window", 4096));
  if (windows == c.layers) {
    c.attention = window;
    return;
  }
  std::vector<std::int64_t> layers;
  for (std::size_t i = 0; i < with.size(); ++i)
    if (with[i]) layers.push_back(static_cast<std::int64_t>(i));
  c.attention_layers = {{layers_text(layers), window}};
  if (ropes.windows != ropes.dense) c.rope_layers = {{layers_text(layers), ropes.windows}};
}

Biases read_biases(const Keys& k, Family family) {
  if (family == Family::qwen2) return Biases::qkv;
  const bool attention = k.flag_or("attention_bias", false), mlp = k.flag_or("mlp_bias", false);
  if (family == Family::llama && attention && mlp) return Biases::all;
  if (attention)
    k.refuse("attention_bias",
             "biases of queries, keys, values and the output without biases of the MLP are not supported");
  if (mlp) k.refuse("mlp_bias", "biases of the MLP without biases of attention are not supported");
  return Biases::none;
}

void check_activation(const Keys& k, Family family) {
  if (is_gemma(family)) {  // the key hidden_act of old files is ignored
    if (k.text_or("hidden_activation", "gelu_pytorch_tanh") != "gelu_pytorch_tanh")
      k.refuse("hidden_activation", "this family's MLP supports only gelu_pytorch_tanh");
    return;
  }
  if (const std::string act = k.text_or("hidden_act", "silu"); act != "silu" && act != "swish")
    k.refuse("hidden_act", "a gated MLP supports only silu");
}

double soft_cap(const Keys& k, const char* key, Family family, double other) {
  if (!is_gemma(family)) {
    if (k.has(key)) k.refuse(key, "only Gemma 2 and Gemma 3 have soft caps");
    return 0;
  }
  const double cap = k.says_null(key) ? 0 : k.number_or(key, other);
  if (cap < 0) k.wrong(key, "a number above 0, or null");
  return cap;
}

void read_gemma(const Keys& k, Family family, ModelConfig& c) {
  const bool caps = family == Family::gemma2;
  c.attention_soft_cap = soft_cap(k, "attn_logit_softcapping", family, caps ? 50 : 0);
  c.logit_soft_cap = soft_cap(k, "final_logit_softcapping", family, caps ? 30 : 0);
  if (!is_gemma(family)) return;
  if (!caps && c.attention_soft_cap > 0)
    k.refuse("attn_logit_softcapping", "transformers ignores it in Gemma 3. Remove it");
  c.norm_zero_centered = true;
  c.mlp = Mlp::geglu_tanh;
  c.embedding_scale = std::sqrt(static_cast<double>(c.width));
  const std::int64_t scalar = k.count_or("query_pre_attn_scalar", 256);
  if (scalar != c.head_dim) c.attention_scale = 1 / std::sqrt(static_cast<double>(scalar));
}

// Reads which layers are gated delta nets.
std::vector<Mixer> layer_mixers(const Keys& k, Family family, std::int64_t layers) {
  std::vector<Mixer> all(static_cast<std::size_t>(layers), Mixer::gated_delta_net);
  if (!k.has("layer_types")) {
    const bool qwen = family == Family::qwen3_5;
    const auto period = static_cast<std::size_t>(qwen ? k.count_or("full_attention_interval", 4) : 4);
    for (std::size_t i = period - 1; i < all.size(); i += period) all[i] = Mixer::attention;
    if (!qwen && all.size() < period) all.back() = Mixer::attention;
    return all;
  }
  const json& types = k.at("layer_types");
  if (!types.is_array() || std::ssize(types) != layers) k.wrong("layer_types", str("a list of ", layers, " strings"));
  for (std::size_t i = 0; i < all.size(); ++i) {
    if (types[i] == "full_attention")
      all[i] = Mixer::attention;
    else if (types[i] != "linear_attention")
      k.refuse("layer_types", "supported are full_attention and linear_attention");
  }
  return all;
}

// Returns the shortest list that gives all layers their mixers if it repeats.
std::vector<Mixer> repeating(const std::vector<Mixer>& all) {
  std::size_t period = 1;
  const auto repeats = [&](std::size_t n) {
    return std::equal(all.begin() + static_cast<std::ptrdiff_t>(n), all.end(), all.begin());
  };
  while (!repeats(period)) ++period;
  return {all.begin(), all.begin() + static_cast<std::ptrdiff_t>(period)};
}

GatedDeltaNetConfig read_delta_nets(const Keys& k, Family family, const ModelConfig& c) {
  GatedDeltaNetConfig g;
  const bool qwen = family == Family::qwen3_5;
  g.key_heads = k.count_or("linear_num_key_heads", qwen ? 16 : c.heads);
  g.value_heads = k.count_or("linear_num_value_heads", qwen ? 32 : c.heads);
  g.key_width = k.count_or("linear_key_head_dim", qwen ? 128 : 3 * c.width / (4 * g.key_heads));
  g.value_width = k.count_or("linear_value_head_dim", qwen ? 128 : 2 * g.key_width);
  g.conv_kernel = k.count_or("linear_conv_kernel_dim", 4);
  if (qwen) return g;
  g.negative_eigenvalues = k.flag_or("linear_allow_neg_eigval", true);
  if (c.norm_eps != kOlmoHybridDeltaEps) g.norm_eps = kOlmoHybridDeltaEps;
  return g;
}

// Returns true if an Olmo Hybrid model has no positions, which is a rope_theta of null.
bool has_no_positions(const Keys& k) {
  if (k.has("rope_theta") || k.has("rope_scaling")) return false;
  if (!k.has("rope_parameters"))
    k.problem(
        "rope_parameters is missing. Versions of transformers differ in whether such a model rotates queries and keys. "
        "Set it to {\"rope_type\": \"default\", \"rope_theta\": null} if it does not, otherwise to the right "
        "rope_theta");
  return k.section("rope_parameters").says_null("rope_theta");
}

void check_rotary_channels(const Keys& k, const ModelConfig& c) {
  const auto all = static_cast<double>(c.resolved().head_dim), rotated = std::floor(all * c.rope.partial_rotary_factor);
  const bool even = rotated >= 2 && rotated <= all && std::fmod(rotated, 2) == 0;
  if (!even)
    k.problem(str("partial_rotary_factor: ", c.rope.partial_rotary_factor,
                  ": expected a factor that rotates an even number of channels, from 2 to ", all));
  if (const double scale = rope_attention_factor(c.rope); rotated < all && scale != 1)
    k.problem(str("YaRN scales the rotated channels of queries and keys by ", scale,
                  ", which is not supported if only some channels are rotated (partial_rotary_factor)"));
}

void read_hybrid(const Keys& k, Family family, ModelConfig& c) {
  const std::vector<Mixer> mixers = layer_mixers(k, family, c.layers);
  const auto count = std::ranges::count(mixers, Mixer::attention);
  if (count == 0) k.problem("at least one layer must be full_attention (layer_types)");
  if (count < c.layers) {
    c.mixers = repeating(mixers);
    c.gated_delta_net = read_delta_nets(k, family, c);
  }
  if (family == Family::qwen3_5) {
    if (!k.flag_or("attn_output_gate", true)) k.refuse("attn_output_gate", "this family always has the gate");
    c.attention_output_gate = c.norm_zero_centered = true;
    return check_rotary_channels(k, c);
  }
  if (count == c.layers) k.problem("at least one layer must be linear_attention (layer_types)");
  c.norm_place = NormPlace::reordered_attention;
}

// Reads a model with Llama's structure. Missing keys have the defaults of transformers' classes, if the classes define
// any.
ModelConfig like_llama(const Keys& k, Family family) {
  ModelConfig c;
  c.width = k.count("hidden_size");
  c.mlp_width = k.count("intermediate_size");
  c.layers = k.count("num_hidden_layers", kMaxLayers);
  c.heads = k.count("num_attention_heads");
  const bool as_heads = family == Family::llama || is_olmo(family) || k.says_null("num_key_value_heads");
  c.kv_heads = as_heads ? k.integer_or("num_key_value_heads", c.heads) : k.integer("num_key_value_heads");
  const std::int64_t wide = is_gemma(family) || family == Family::qwen3_5 ? 256 : 0;
  const std::int64_t head_dim = family == Family::qwen3 ? 128 : wide;
  c.head_dim = k.says_null("head_dim") ? 0 : k.integer_or("head_dim", head_dim);
  c.context = k.count("max_position_embeddings");
  c.norm_eps = k.number_or("rms_norm_eps", family == Family::olmo2 || family == Family::olmo3 ? 1e-5 : 1e-6);
  if (is_olmo(family)) c.norm_place = NormPlace::reordered;
  if (is_gemma(family)) c.norm_place = NormPlace::sandwich;
  c.qk_norm = family == Family::qwen3 || family == Family::qwen3_5 || family == Family::gemma3 || is_olmo(family);
  if (is_olmo(family)) c.qk_norm_over = QkNormOver::projection;
  check_activation(k, family);
  c.biases = read_biases(k, family);
  c.tied_embeddings = k.flag_or("tie_word_embeddings", is_gemma(family));
  read_gemma(k, family, c);
  if (family == Family::olmo_hybrid && has_no_positions(k))
    c.positions = Positions::none;
  else if (!has_layer_ropes(family))
    read_rope(k, family, c.rope);
  if (is_hybrid(family))
    read_hybrid(k, family, c);
  else
    read_windows(k, family, c);
  return c;
}

Mlp gelu_in(const Keys& k) {
  const std::string act = k.text_or("activation_function", "gelu_new");
  if (act == "gelu") return Mlp::gelu;
  if (act != "gelu_new" && act != "gelu_pytorch_tanh")
    k.refuse("activation_function", "supported are gelu_new, gelu_pytorch_tanh and gelu");
  return Mlp::gelu_tanh;
}

ModelConfig like_gpt2(const Keys& k) {
  ModelConfig c;
  c.width = k.count("n_embd");
  c.layers = k.count("n_layer", kMaxLayers);
  c.heads = k.count("n_head");
  c.context = k.count("n_positions");
  c.mlp_width = k.integer_or("n_inner", 4 * c.width);
  c.norm_eps = k.number_or("layer_norm_epsilon", 1e-5);
  c.norm = NormKind::layer;
  c.positions = Positions::learned;
  c.mlp = gelu_in(k);
  c.biases = Biases::all;
  c.tied_embeddings = k.flag_or("tie_word_embeddings", true);
  return c;
}

json parse(const std::string& text, const std::string& file) {
  json j;
  try {
    j = parse_json<json>(text, {.depth = kMaxDepth});
  } catch (const Error& e) {
    fail(file, " cannot be read as JSON: ", e.what());
  }
  if (!j.is_object()) fail(file, ": expected a JSON object");
  return j;
}

PublishedModel model_in(const Keys& k) {
  PublishedModel m;
  m.family = family_in(k);
  refuse_what_is_missing_here(k, m.family == Family::qwen3_5 ? "partial_rotary_factor" : "");
  m.model = m.family == Family::gpt2 ? like_gpt2(k) : like_llama(k, m.family);
  m.model.vocab_size = k.count("vocab_size");
  m.model.init_std = k.number_or("initializer_range", 0.02);
  return m;
}

// Reads the settings of the text model in a multimodal Qwen3.5, which are in a section of config.json.
PublishedModel language_model_in(const Keys& k) {
  refuse_what_is_missing_here(k, "vision_config");
  PublishedModel m = model_in(k.section("text_config"));
  if (m.family != Family::qwen3_5) k.section("text_config").refuse("model_type", "expected qwen3_5_text");
  m.model.tied_embeddings = k.flag_or("tie_word_embeddings", m.model.tied_embeddings);
  return m;
}

}  // namespace

PublishedModel parse_hf_config(const std::string& text, const std::string& file) {
  const json j = parse(text, file);
  const Keys k(j, file);
  if (k.text_or("model_type", "") == "qwen3_5" && k.has("text_config")) return language_model_in(k);
  return model_in(k);
}

}  // namespace ring
