#pragma once
// Families of published models that a configuration can match: each is a class of Hugging Face's transformers with its
// own tensor names and config.json keys.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "model/config.h"

namespace ring {

enum class Family : std::uint8_t { llama, mistral, qwen2, qwen3, gpt2 };

const char* architecture(Family);                               // name of the class, such as "LlamaForCausalLM"
const char* model_type(Family);                                 // model_type in config.json, such as "llama"
std::optional<Family> family_of_type(const std::string& type);  // family with this model_type; nullopt if there is none
std::string all_architectures();                                // comma-separated, for messages

// Returns the family of a model. Throws Error, which names the setting, if no family has it.
Family family_of(const ModelConfig& resolved);

// Returns the attention window of each layer, in tokens; 0: dense. Throws Error if a layer has a different kind of
// attention, or sinks.
std::vector<std::int64_t> windows_of(const ModelConfig& resolved);

}  // namespace ring
