#pragma once
// Names that llama.cpp gives to models, settings and tensors.

#include <cstdint>
#include <string>
#include <vector>

#include "interchange/gguf/writer.h"
#include "interchange/hf/names.h"

namespace ring {

// Returns the name of the model family in llama.cpp, such as "qwen3". Throws Error, which names the setting and the
// remedy, if llama.cpp does not support a setting.
std::string gguf_architecture(const ModelConfig& resolved);

// Returns the keys of the model's settings, e.g. "llama.block_count".
GgufKeys gguf_settings(const std::string& architecture, const ModelConfig& resolved);

struct GgufWeight {
  GgufTensor tensor;
  PublishedTensor from;       // source tensor; if it has no parts, the values are in `values`
  std::int64_t heads = 0;     // number of heads if interleaved_heads() must reorder the rows; else 0
  std::vector<float> values;  // values that are computed from settings
  float add = 0;              // added to each value: weights centred on 0 become plain factors, as llama.cpp requires
};
// Returns all tensors in the order of the file. Matrices have type `type`, or f16 if their rows are not whole q8_0
// blocks; norms, biases and learned positions are f32.
std::vector<GgufWeight> gguf_weights(const std::string& architecture, const ModelConfig& resolved, GgufType type);

// Reorders the rows of all heads, `values` [heads D, columns], for llama.cpp's `llama`: it rotates channels 2 i and 2 i
// + 1 of a head together, whereas we rotate channels i and i + D/2.
std::vector<float> interleaved_heads(const std::vector<float>& values, std::int64_t heads, std::int64_t columns);

}  // namespace ring
