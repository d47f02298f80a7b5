#pragma once
// Sequences that are sharded among ranks, for computations by blocks of 64 tokens.

#include <cstdint>
#include <string>
#include <vector>

namespace ring::test {

struct SequenceCut {
  std::string name;
  std::int64_t length, align;
  std::vector<std::int32_t> documents;
};

// Pieces that end within blocks, blocks of which one rank has two pieces or three ranks have one each, ranks without
// tokens.
inline const std::vector<SequenceCut> kCuts = {
    {"aligned", 512, 64, {}}, {"ragged", 515, 1, {}}, {"packed", 403, 1, {70, 1, -9, 150, 3, -40, 90}},
    {"short", 60, 1, {}},     {"tiny", 3, 1, {}},     {"padding", 64, 1, {-64}}};

}  // namespace ring::test
