#pragma once
// config.json of published models.

#include <cstdint>
#include <optional>
#include <string>

#include "checkpoint/safetensors/float_type.h"
#include "trainer/hf/family.h"

namespace ring {

// Its text, with the keys of transformers 4 and of transformers 5 (rope_theta and rope_scaling, and rope_parameters;
// torch_dtype and dtype).
std::string hf_config(Family, const ModelConfig& resolved, FloatType, std::optional<std::int32_t> end_of_text);
std::string hf_generation_config(std::optional<std::int32_t> end_of_text);

struct PublishedModel {
  Family family = Family::llama;
  ModelConfig model;
};
// Keys that are missing are what transformers takes for them. Error names `file` and the key: it is no config.json, of
// a family that is not known, or asks for what this program does not have.
PublishedModel parse_hf_config(const std::string& text, const std::string& file);

}  // namespace ring
