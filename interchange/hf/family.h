#pragma once
// Families of published models that a configuration can match. Each family is a class in Hugging Face's transformers
// with specific tensor names and config.json keys.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "model/config.h"

namespace ring {

enum class Family : std::uint8_t {
  llama,
  mistral,
  qwen2,
  qwen3,
  olmo2,
  olmo3,
  gemma2,
  gemma3,
  qwen3_5,
  olmo_hybrid,
  gpt2
};

const char* architecture(Family);                               // name of the class, e.g. "LlamaForCausalLM"
const char* model_type(Family);                                 // model_type in config.json, e.g. "llama"
std::optional<Family> family_of_type(const std::string& type);  // nullopt if no family has this model_type
std::string all_architectures();                                // comma-separated, for messages

// Returns the family of a model. Throws Error, which names the setting, if no family supports it.
Family family_of(const ModelConfig& resolved);

bool is_olmo(Family);  // also true for Olmo Hybrid
bool is_gemma(Family);
bool is_hybrid(Family);  // true for families in which some layers are gated delta nets
// has_layer_types() is true for families whose layers may have windows or dense attention (layer_types).
// has_layer_ropes() is true for those whose layers with windows have a rotary embedding of their own.
bool has_layer_types(Family);
bool has_layer_ropes(Family);

// The rotary embedding of the layers with dense attention, and that of the layers with windows.
struct PublishedRopes {
  RopeConfig dense, windows;
};
// Throws Error if layers of one kind have different embeddings. If one kind has no layers, both members are the same.
PublishedRopes published_ropes(const ModelConfig& resolved);

// The epsilon of the norm in Olmo Hybrid's gated delta nets, which config.json cannot change.
inline constexpr double kOlmoHybridDeltaEps = 1e-5;

// Returns 1 / attention_scale^2, which Gemma calls query_pre_attn_scalar; 0 if it is not a whole number.
std::int64_t query_pre_attn_scalar(const ModelConfig& resolved);

// Returns the attention window of each layer, in tokens; 0 means dense, or a layer without attention. Throws Error if a
// layer has a different kind of attention, or sinks.
std::vector<std::int64_t> attention_windows(const ModelConfig& resolved);

}  // namespace ring
