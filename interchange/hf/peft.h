#pragma once
// Low-rank adapters (model.lora) in the form of Hugging Face's PEFT: a folder with adapter_config.json and
// adapter_model.safetensors.

#include <string>
#include <vector>

#include "evaluate/session.h"
#include "interchange/hf/names.h"

namespace ring {

inline constexpr const char *kPeftConfig = "adapter_config.json", *kPeftWeights = "adapter_model.safetensors";

// Returns the tensors of a model's adapters. Throws Error if the family's published weights join or transpose the
// layers that have an adapter (GPT-2).
std::vector<PublishedTensor> peft_tensors(Family, const ModelConfig& resolved);
// Returns the text of adapter_config.json. base: name of the published model, or "".
std::string peft_config(const LoraConfig& resolved, const std::vector<PublishedTensor>&, const std::string& base);

// Adds the adapter in a folder to the weights of the session's model: W + alpha / r B A, rounded to the type of the
// weights. Throws Error if the folder is not an adapter of this kind, or if its tensors do not fit the model.
void merge_peft_adapter(Session&, const std::string& folder);

}  // namespace ring
