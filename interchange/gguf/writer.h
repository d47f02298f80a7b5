#pragma once
// Writer of GGUF files, version 3: a header with keys and tensor descriptions, then the tensors, each aligned to 32
// bytes. Source: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md.

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
  std::vector<std::int64_t> shape;  // row-major, like our tensors; for q8_0 the last dim is a multiple of kQ8Block
  GgufType type = GgufType::f32;
};

// Writes a complete file. values(i) returns tensor i, row-major; it is called once for each i, in order, so that only
// one tensor is in memory at a time. Throws Error, which names the tensor, if a value is out of range for the tensor's
// type.
void write_gguf(FileHandle&, const GgufKeys&, const std::vector<GgufTensor>&,
                const std::function<std::vector<float>(std::size_t i)>& values);

}  // namespace ring
