#pragma once
// config.json of published models.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "checkpoint/safetensors/float_type.h"
#include "interchange/hf/family.h"

namespace ring {

// The tokens around a text, if the tokenizer names them.
struct TextEnds {
  std::optional<std::int32_t> first, end;
  std::vector<std::int32_t> more_ends{};  // tokens that end a text too
};

// Its text, with the keys of transformers 4 and of transformers 5 (rope_theta and rope_scaling, and rope_parameters;
// torch_dtype and dtype). `kept` is the generation_config.json that came with the weights, or empty: its bos_token_id
// and pad_token_id are those of the model.
std::string hf_config(Family, const ModelConfig& resolved, FloatType, const TextEnds&, const std::string& kept = "");
// Returns `kept` with the ends in place of its own.
std::string hf_generation_config(const TextEnds&, const std::string& kept = "");

struct PublishedModel {
  Family family = Family::llama;
  ModelConfig model;
};
// Keys that are missing are what transformers takes for them. Error names `file` and the key: it is no config.json, of
// a family that is not known, or asks for what this program does not have.
PublishedModel parse_hf_config(const std::string& text, const std::string& file);

}  // namespace ring
