#include "interchange/hf/family.h"

#include <algorithm>
#include <array>

#include "core/check.h"
#include "core/fields.h"
#include "core/joined.h"
#include "model/patterns.h"

namespace ring {
namespace {

struct FamilyNames {
  Family family;
  const char *architecture, *type;
};
constexpr std::array<FamilyNames, 5> kFamilies = {{{Family::llama, "LlamaForCausalLM", "llama"},
                                                   {Family::mistral, "MistralForCausalLM", "mistral"},
                                                   {Family::qwen2, "Qwen2ForCausalLM", "qwen2"},
                                                   {Family::qwen3, "Qwen3ForCausalLM", "qwen3"},
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

void check_gpt2(const ModelConfig& c) {
  const Requirements gpt2(c, Family::gpt2);
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

Family check_with_rope(const ModelConfig& c) {
  const Family f = closest_with_rope(c);
  const Requirements closest(c, f);
  closest.require(c.norm_place == NormPlace::pre, "norm_place", "pre");
  closest.require(c.positions == Positions::rope, "positions", "rope");
  closest.require(c.mlp == Mlp::swiglu, "mlp", "swiglu");
  if (f == Family::qwen3) closest.require(c.biases == Biases::none, "biases", "none");
  const std::vector<std::int64_t> windows = attention_windows(c);
  check_one_window(windows);
  const Family family = family_for_windows(f, windows);
  if (family == Family::mistral) Requirements(c, family).require(c.biases == Biases::none, "biases", "none");
  return family;
}

}  // namespace

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
  if (c.norm == NormKind::rms) return check_with_rope(c);
  check_gpt2(c);
  return Family::gpt2;
}

std::vector<std::int64_t> attention_windows(const ModelConfig& c) {
  std::vector<std::int64_t> windows;
  for (const AttentionConfig* a : attentions_of(c)) {
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
