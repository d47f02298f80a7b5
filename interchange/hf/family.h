#pragma once
// The families of published models that a configuration can be: each is a class of Hugging Face's transformers, with
// names of tensors and keys of config.json of its own.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "model/config.h"

namespace ring {

enum class Family : std::uint8_t { llama, mistral, qwen2, qwen3, gpt2 };

const char* architecture(Family);                               // "LlamaForCausalLM"
const char* model_type(Family);                                 // "llama"
std::optional<Family> family_of_type(const std::string& type);  // of this model_type; nothing: it is none of these
std::string all_architectures();                                // for messages, with commas

// What the model is, of these. Error names the setting that none of them has.
Family family_of(const ModelConfig& resolved);

// The window of each layer; 0: dense. Error: a layer has another kind of attention, or sinks.
std::vector<std::int64_t> windows_of(const ModelConfig& resolved);

}  // namespace ring
