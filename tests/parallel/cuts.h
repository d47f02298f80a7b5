#pragma once
// Sequences that are cut among ranks, for what is computed by blocks of 64 tokens.

#include <cstdint>
#include <string>
#include <vector>

namespace ring::test {

struct Cut {
  std::string name;
  std::int64_t length, align;
  std::vector<std::int32_t> documents;
};

// Pieces that end within blocks, blocks of which a rank has two pieces or three ranks have one, ranks without a token.
inline const std::vector<Cut> kCuts = {
    {"aligned", 512, 64, {}}, {"ragged", 515, 1, {}}, {"packed", 403, 1, {70, 1, -9, 150, 3, -40, 90}},
    {"short", 60, 1, {}},     {"tiny", 3, 1, {}},     {"padding", 64, 1, {-64}}};

}  // namespace ring::test
