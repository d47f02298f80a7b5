#pragma once
// GGUF files, version 3: a header with keys and tensors, then the tensors, each at a multiple of 32 bytes. After
// https://github.com/ggml-org/ggml/blob/master/docs/gguf.md.

#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "core/files.h"
#include "interchange/gguf/type.h"

namespace ring {

using GgufValue = std::variant<bool, std::uint32_t, float, std::string, std::vector<std::int32_t>, std::vector<float>,
                               std::vector<std::string>>;
using GgufKeys = std::vector<std::pair<std::string, GgufValue>>;

struct GgufTensor {
  std::string name;
  std::vector<std::int64_t> shape;  // as ours, rows first; of q8_0 the last one is a multiple of kQ8Block
  GgufType type = GgufType::f32;
};

// Writes a whole file. values(i): tensor i, row by row; called once for each, in their order, so that one is in memory
// at a time. Error names the tensor: a value is beyond what its type holds.
void write_gguf(FileHandle&, const GgufKeys&, const std::vector<GgufTensor>&,
                const std::function<std::vector<float>(std::size_t i)>& values);

}  // namespace ring
