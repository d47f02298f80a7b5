#pragma once
// Families of published models that a configuration can match. Each family is a class in Hugging Face's transformers
// with specific tensor names and config.json keys.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "model/config.h"

namespace ring {

enum class Family : std::uint8_t { llama, mistral, qwen2, qwen3, gpt2 };

const char* architecture(Family);                               // name of the class, e.g. "LlamaForCausalLM"
const char* model_type(Family);                                 // model_type in config.json, e.g. "llama"
std::optional<Family> family_of_type(const std::string& type);  // nullopt if no family has this model_type
std::string all_architectures();                                // comma-separated, for messages

// Returns the family of a model. Throws Error, which names the setting, if no family supports it.
Family family_of(const ModelConfig& resolved);

// Returns the attention window of each layer, in tokens; 0 means dense. Throws Error if a layer has a different kind of
// attention, or sinks.
std::vector<std::int64_t> attention_windows(const ModelConfig& resolved);

}  // namespace ring
