#pragma once
// Reads and writes config.json of published models.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "checkpoint/safetensors/float_type.h"
#include "interchange/hf/family.h"

namespace ring {

// The tokens that begin and end a text, if the tokenizer names them.
struct TextEnds {
  std::optional<std::int32_t> begin, end;
  std::vector<std::int32_t> more_ends{};  // additional tokens that end a text
};

// Returns the text of a config.json that has the keys of both transformers 4 (rope_theta, rope_scaling, torch_dtype)
// and transformers 5 (rope_parameters, dtype). imported: the generation_config.json that came with the weights, or "".
// The model gets its bos_token_id and pad_token_id.
std::string hf_config(Family, const ModelConfig& resolved, FloatType, const TextEnds&,
                      const std::string& imported = "");
// Returns `imported` with its end tokens replaced by those of TextEnds.
std::string hf_generation_config(const TextEnds&, const std::string& imported = "");

struct PublishedModel {
  Family family = Family::llama;
  ModelConfig model;
};
// Parses a config.json. Missing keys have the defaults of transformers. Throws Error, which names `file` and the key,
// if the text is not a config.json, or if the family or a setting is not supported.
PublishedModel parse_hf_config(const std::string& text, const std::string& file);

}  // namespace ring
