#pragma once
// What llama.cpp calls our models, their settings and their tensors.

#include <cstdint>
#include <string>
#include <vector>

#include "interchange/gguf/writer.h"
#include "interchange/hf/names.h"

namespace ring {

// "llama", "qwen2", "qwen3" or "gpt2": llama.cpp's name of the family. Error names the setting that llama.cpp does not
// compute for it, and what to do.
std::string gguf_architecture(const ModelConfig& resolved);

// "llama.block_count" and so on.
GgufKeys gguf_settings(const std::string& architecture, const ModelConfig& resolved);

struct GgufWeight {
  GgufTensor tensor;
  PublishedTensor from;       // without parts: `values` are the tensor
  std::int64_t heads = 0;     // of rows that llama.cpp wants in another order; 0: as they are
  std::vector<float> values;  // that settings determine
};
// All tensors in the order of the file. Matrices get `type`, or f16 where q8_0 cannot have their rows; norms, biases
// and learned positions are f32.
std::vector<GgufWeight> gguf_weights(const std::string& architecture, const ModelConfig& resolved, GgufType type);

// llama.cpp's `llama` rotates channels 2 i and 2 i + 1 of a head with each other, ours i and i + D/2. `values`: rows of
// all heads, [heads D, columns].
std::vector<float> interleaved_heads(const std::vector<float>& values, std::int64_t heads, std::int64_t columns);

}  // namespace ring
