#pragma once
// The header of a safetensors file, which describes the bytes after it:
//
//   8 bytes       length N of the header, little endian
//   N bytes       JSON: {"name": {"dtype": "F32", "shape": [2,3], "data_offsets": [0,24]}, ...}, then spaces
//   all others    the tensors, packed, row by row, little endian, without holes
//
// "__metadata__" holds strings instead of a tensor. (https://github.com/huggingface/safetensors, "Format")

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace ring {

inline constexpr std::uint64_t kMaxSafetensorsHeader = 100'000'000;  // in bytes; limit set by the format

struct SafeTensor {
  std::string type;  // as spelled in the file, e.g. "F32", "BF16", "I64"
  std::vector<std::int64_t> shape;
  std::uint64_t begin = 0, end = 0;  // byte range, relative to the end of the header
};
std::string text_of(const SafeTensor&);  // e.g. "BF16[4,8]"

struct SafetensorsHeader {
  std::uint64_t bytes = 0;  // length of the header: the file offset of the first tensor
  std::map<std::string, SafeTensor> tensors;
  std::map<std::string, std::string> metadata;
};

// Parses the header; `file` is the whole file, of which only the header is read. Throws Error if the file is truncated,
// if its header is not JSON of this form or names a tensor twice, if a shape does not match its bytes, or if tensors
// overlap, leave gaps or do not end at the end of the file.
SafetensorsHeader parse_safetensors(std::string_view file);

// Returns the header of a file with these tensors, padded so that the tensors start at a multiple of 64 bytes.
std::string safetensors_header(const std::vector<std::pair<std::string, SafeTensor>>&,
                               const std::map<std::string, std::string>& metadata);

}  // namespace ring
