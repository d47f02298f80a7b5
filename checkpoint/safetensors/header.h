#pragma once
// The header of a safetensors file, which says what the bytes behind it are:
//
//   8 bytes       length N of the header, little endian
//   N bytes       JSON: {"name": {"dtype": "F32", "shape": [2,3], "data_offsets": [0,24]}, ...}, then spaces
//   all others    the tensors, packed, row by row, little endian, without holes
//
// "__metadata__" holds texts in place of a tensor. (https://github.com/huggingface/safetensors, "Format")

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace ring {

inline constexpr std::uint64_t kMostSafetensorsHeader = 100'000'000;  // bytes; the format's own bound

struct SafeTensor {
  std::string type;  // as the file says it: "F32", "BF16", "I64"
  std::vector<std::int64_t> shape;
  std::uint64_t begin = 0, end = 0;  // of its bytes, counted from the first one behind the header
};
std::string text_of(const SafeTensor&);  // "BF16[4,8]"

struct SafetensorsHeader {
  std::uint64_t bytes = 0;  // from here on tensors lie in the file
  std::map<std::string, SafeTensor> tensors;
  std::map<std::string, std::string> metadata;
};

// `file`: all of its bytes, of which only those of the header are read. Error: it is cut short, its header is no JSON
// of this form or names a tensor twice, a shape does not fit its bytes, or tensors overlap, leave holes or end
// elsewhere than the file does.
SafetensorsHeader parse_safetensors(std::string_view file);

// The first bytes of a file with these tensors, padded so that what follows starts at a multiple of 64.
std::string safetensors_header(const std::vector<std::pair<std::string, SafeTensor>>&,
                               const std::map<std::string, std::string>& metadata);

}  // namespace ring
