#include "interchange/hf/family.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "core/check.h"
#include "core/fields.h"
#include "core/joined.h"
#include "model/patterns.h"
#include "model/rope.h"

namespace ring {
namespace {

struct FamilyNames {
  Family family;
  const char *architecture, *type;
};
constexpr std::array<FamilyNames, 11> kFamilies = {{{Family::llama, "LlamaForCausalLM", "llama"},
                                                    {Family::mistral, "MistralForCausalLM", "mistral"},
                                                    {Family::qwen2, "Qwen2ForCausalLM", "qwen2"},
                                                    {Family::qwen3, "Qwen3ForCausalLM", "qwen3"},
                                                    {Family::olmo2, "Olmo2ForCausalLM", "olmo2"},
                                                    {Family::olmo3, "Olmo3ForCausalLM", "olmo3"},
                                                    {Family::gemma2, "Gemma2ForCausalLM", "gemma2"},
                                                    {Family::gemma3, "Gemma3ForCausalLM", "gemma3_text"},
                                                    {Family::qwen3_5, "Qwen3_5ForCausalLM", "qwen3_5_text"},
                                                    {Family::olmo_hybrid, "OlmoHybridForCausalLM", "olmo_hybrid"},
                                                    {Family::gpt2, "GPT2LMHeadModel", "gpt2"}}};

const FamilyNames& names_of(Family f) { return *std::ranges::find(kFamilies, f, &FamilyNames::family); }

// Returns a model setting as text.
std::string value_of(ModelConfig model, const std::string& key) {
  const config::Node root = bind_config(model);
  const auto field = std::ranges::find(root.fields, key, &config::Field::name);
  RING_CHECK(field != root.fields.end(), "there is no setting model.", key);
  return config::to_text(field->node.get());
}

// Checks the settings that a family requires; throws Error for the first setting that the model does not meet.
class Requirements {
 public:
  Requirements(const ModelConfig& model, Family family) : model_(model), family_(family) {}
  void require(bool holds, const char* key, const std::string& needed) const {
    if (!holds)
      fail("model.", key, ": ", value_of(model_, key), " cannot be exported: ", architecture(family_),
           ", the closest published family, requires ", needed);
  }

 private:
  const ModelConfig& model_;
  Family family_;
};

// For families without scales and soft caps: throws Error if the model has one.
void check_plain(const Requirements& closest, const ModelConfig& c) {
  closest.require(c.attention_scale == 0, "attention_scale", "0");
  closest.require(c.embedding_scale == 1, "embedding_scale", "1");
  closest.require(c.attention_soft_cap == 0, "attention_soft_cap", "0");
  closest.require(c.logit_soft_cap == 0, "logit_soft_cap", "0");
}

void check_gpt2(const ModelConfig& c) {
  const Requirements gpt2(c, Family::gpt2);
  check_plain(gpt2, c);
  gpt2.require(!c.attention_output_gate, "attention_output_gate", "false");
  gpt2.require(c.norm_place == NormPlace::pre, "norm_place", "pre");
  gpt2.require(c.positions == Positions::learned, "positions", "learned");
  gpt2.require(c.mlp == Mlp::gelu || c.mlp == Mlp::gelu_tanh, "mlp", "gelu or gelu_tanh");
  gpt2.require(c.biases == Biases::all, "biases", "all");
  gpt2.require(!c.qk_norm, "qk_norm", "none");
  gpt2.require(c.kv_heads == c.heads, "kv_heads", "the same number as heads");
  gpt2.require(c.head_dim * c.heads == c.width, "head_dim", "width / heads");
  for (const std::int64_t window : attention_windows(c))
    if (window)
      fail("model.attention.kind: window cannot be exported: ", architecture(Family::gpt2),
           " has only dense attention");
}

Family closest_with_rope(const ModelConfig& c) {
  if (c.norm_place == NormPlace::reordered_attention) return Family::olmo_hybrid;
  if (has_gated_delta_net(c) || c.attention_output_gate) return Family::qwen3_5;
  if (c.norm_place == NormPlace::reordered) {
    const bool alike = c.rope_layers.empty() && std::ranges::max(attention_windows(c)) == 0;
    return alike ? Family::olmo2 : Family::olmo3;
  }
  if (c.norm_place == NormPlace::sandwich) return c.qk_norm ? Family::gemma3 : Family::gemma2;
  if (c.qk_norm) return Family::qwen3;
  return c.biases == Biases::qkv ? Family::qwen2 : Family::llama;
}

// Returns mistral for a Llama-like model with windows in all layers, else `f`. Throws Error if only some layers have
// windows and `f` cannot express this.
Family family_for_windows(Family f, const std::vector<std::int64_t>& windows) {
  const bool all_dense = std::ranges::count(windows, 0) == std::ssize(windows);
  if (f != Family::llama || all_dense) return f;
  // All windows have one size (check_one_window()): if layers differ, only some of them have a window.
  if (std::ranges::adjacent_find(windows, std::ranges::not_equal_to()) != windows.end())
    fail("model.attention_layers: windows in only some layers cannot be exported: ", architecture(Family::mistral),
         " has them in all, ", architecture(Family::qwen2), " requires biases: qkv, and ", architecture(Family::qwen3),
         " requires qk_norm: true");
  return Family::mistral;
}

void check_one_window(const std::vector<std::int64_t>& windows) {
  std::int64_t one = 0;
  for (const std::int64_t window : windows) {
    if (one && window && window != one)
      fail("model.attention_layers: windows of ", one, " and of ", window,
           " tokens cannot be exported: a published model has a single window size");
    one = std::max(one, window);
  }
}

void check_gemma(const Requirements& gemma, Family f, const ModelConfig& c) {
  gemma.require(c.norm_zero_centered, "norm_zero_centered", "true");
  const double scale = std::sqrt(static_cast<double>(c.width));
  gemma.require(std::abs(c.embedding_scale - scale) <= 1e-6 * scale, "embedding_scale", str("sqrt(width), ", scale));
  gemma.require(query_pre_attn_scalar(c) > 0, "attention_scale",
                "1 / sqrt(n) with a whole number n (query_pre_attn_scalar)");
  if (f == Family::gemma3) gemma.require(c.attention_soft_cap == 0, "attention_soft_cap", "0");
}

void check_qk_norm(const Requirements& closest, Family f, const ModelConfig& c) {
  const bool has = f == Family::qwen3 || f == Family::qwen3_5 || f == Family::gemma3 || is_olmo(f);
  closest.require(c.qk_norm == has, "qk_norm", has ? "true" : "false");
  closest.require((c.qk_norm_over == QkNormOver::projection) == is_olmo(f), "qk_norm_over",
                  is_olmo(f) ? "projection" : "head");
}

void check_ropes(const Requirements& closest, Family f, const ModelConfig& c) {
  for (const RopeConfig* rope : ropes_of(c))
    if (rope->partial_rotary_factor != 1 && f != Family::qwen3_5)
      fail("model.rope.partial_rotary_factor: ", rope->partial_rotary_factor, " cannot be exported: ", architecture(f),
           ", the closest published family, rotates all channels");
  if (f == Family::qwen3_5 && rotary_channels(c.rope, c.head_dim) == 0)
    fail("model.rope.partial_rotary_factor: ", c.rope.partial_rotary_factor, " cannot be exported: ", architecture(f),
         ", the closest published family, rotates at least 2 channels of each head");
  if (has_layer_ropes(f))
    published_ropes(c);
  else
    closest.require(c.rope_layers.empty(), "rope_layers", "the same model.rope in all layers");
}

// Throws Error if YaRN scales queries and keys of which only some channels are rotated. transformers then scales only
// these channels, whereas here the whole score is scaled.
void check_partial_yarn(const ModelConfig& c, Family f) {
  if (rotary_channels(c.rope, c.head_dim) == c.head_dim || rope_attention_factor(c.rope) == 1) return;
  fail("model.rope.attention_factor: ", c.rope.attention_factor, " cannot be exported: ", architecture(f),
       ", the closest published family, requires 1 if model.rope.partial_rotary_factor is below 1");
}

// Checks the settings of attention and of gated delta nets in which hybrid families differ from others.
void check_hybrid(Family f, const ModelConfig& c) {
  const std::string needs = str(" cannot be exported: ", architecture(f), ", the closest published family, requires ");
  if (std::ranges::max(attention_windows(c)) > 0) fail("model.attention: kind: window", needs, "dense attention");
  if (c.positions == Positions::rope) check_partial_yarn(c, f);
  if (!has_gated_delta_net(c)) return;
  const GatedDeltaNetConfig& g = c.gated_delta_net;
  if (g.negative_eigenvalues && f != Family::olmo_hybrid)
    fail("model.gated_delta_net.negative_eigenvalues: true", needs, "false");
  const double eps = g.norm_eps > 0 ? g.norm_eps : c.norm_eps;
  const double needed = f == Family::olmo_hybrid ? kOlmoHybridDeltaEps : c.norm_eps;
  if (eps != needed) fail("model.gated_delta_net.norm_eps: ", eps, needs, needed);
}

Family check_with_rope(const ModelConfig& c) {
  const Family f = closest_with_rope(c);
  const Requirements closest(c, f);
  if (!is_olmo(f) && !is_gemma(f)) closest.require(c.norm_place == NormPlace::pre, "norm_place", "pre");
  const bool optional_rope = f == Family::olmo_hybrid && c.positions == Positions::none;
  closest.require(c.positions == Positions::rope || optional_rope, "positions",
                  f == Family::olmo_hybrid ? "rope or none" : "rope");
  const bool gated = f == Family::qwen3_5;
  closest.require(c.attention_output_gate == gated, "attention_output_gate", gated ? "true" : "false");
  if (!is_gemma(f)) closest.require(c.norm_zero_centered == gated, "norm_zero_centered", gated ? "true" : "false");
  closest.require(c.mlp == (is_gemma(f) ? Mlp::geglu_tanh : Mlp::swiglu), "mlp", is_gemma(f) ? "geglu_tanh" : "swiglu");
  if (is_gemma(f))
    check_gemma(closest, f, c);
  else
    check_plain(closest, c);
  check_qk_norm(closest, f, c);
  check_ropes(closest, f, c);
  if (is_hybrid(f)) check_hybrid(f, c);
  if (f == Family::qwen3 || is_hybrid(f) || is_olmo(f) || is_gemma(f))
    closest.require(c.biases == Biases::none, "biases", "none");
  const std::vector<std::int64_t> windows = attention_windows(c);
  check_one_window(windows);
  const Family family = family_for_windows(f, windows);
  if (family == Family::mistral) Requirements(c, family).require(c.biases == Biases::none, "biases", "none");
  return family;
}

}  // namespace

bool is_olmo(Family f) { return f == Family::olmo2 || f == Family::olmo3 || f == Family::olmo_hybrid; }
bool is_hybrid(Family f) { return f == Family::qwen3_5 || f == Family::olmo_hybrid; }
bool is_gemma(Family f) { return f == Family::gemma2 || f == Family::gemma3; }
bool has_layer_types(Family f) { return f == Family::qwen2 || f == Family::qwen3 || f == Family::olmo3 || is_gemma(f); }
bool has_layer_ropes(Family f) { return f == Family::olmo3 || f == Family::gemma3; }

std::int64_t query_pre_attn_scalar(const ModelConfig& c) {
  if (c.attention_scale == 0) return c.head_dim;
  const double scalar = std::round(1 / (c.attention_scale * c.attention_scale));
  const bool whole = scalar >= 1 && scalar < 1e9 && std::abs(c.attention_scale * std::sqrt(scalar) - 1) <= 1e-6;
  return whole ? static_cast<std::int64_t>(scalar) : 0;
}

PublishedRopes published_ropes(const ModelConfig& c) {
  const std::vector<std::int64_t> windows = attention_windows(c);
  const std::vector<const RopeConfig*> ropes = ropes_of(c);
  const RopeConfig *dense = nullptr, *window = nullptr;
  for (std::size_t i = 0; i < ropes.size(); ++i) {
    const RopeConfig*& known = windows[i] ? window : dense;
    if (known && *known != *ropes[i])
      fail("model.rope_layers: layers with ", windows[i] ? "windows" : "dense attention",
           " that have different rotary embeddings cannot be exported: published models have one for all of them");
    known = ropes[i];
  }
  return {dense ? *dense : *window, window ? *window : *dense};
}

const char* architecture(Family f) { return names_of(f).architecture; }
const char* model_type(Family f) { return names_of(f).type; }

std::optional<Family> family_of_type(const std::string& type) {
  const auto found = std::ranges::find(kFamilies, type, &FamilyNames::type);
  return found == kFamilies.end() ? std::nullopt : std::optional(found->family);
}

std::string all_architectures() {
  std::vector<std::string> names;
  for (const FamilyNames& f : kFamilies) names.emplace_back(f.architecture);
  return joined(names, ", ");
}

Family family_of(const ModelConfig& c) {
  if (c.learned_sinks)
    fail("model.learned_sinks: true cannot be exported: none of the supported families has learned sinks (",
         all_architectures(), ")");
  if (c.norm == NormKind::rms) return check_with_rope(c);
  if (has_gated_delta_net(c)) Requirements(c, closest_with_rope(c)).require(false, "norm", "rms");
  check_gpt2(c);
  return Family::gpt2;
}

std::vector<std::int64_t> attention_windows(const ModelConfig& c) {
  std::vector<std::int64_t> windows;
  for (const AttentionConfig* a : attentions_of(c)) {
    if (mixer_of(c, std::ssize(windows)) != Mixer::attention) {
      windows.push_back(0);
      continue;
    }
    const std::string key = a == &c.attention ? "model.attention" : "model.attention_layers";
    if (a->kind != "dense" && a->kind != "window")
      fail(key, ": kind: ", a->kind, " cannot be exported: published models have dense attention or windows (",
           all_architectures(), ")");
    if (!a->pools.empty()) fail(key, ": pools cannot be exported: no published family has them");
    if (a->sinks) fail(key, ": sinks: ", a->sinks, " cannot be exported: no published family has them");
    windows.push_back(a->kind == "window" ? a->window : 0);
  }
  return windows;
}

}  // namespace ring
