#pragma once
#include <cstdint>

namespace ring {

// A range of a gradient buffer that is summed for one rank.
struct BufferPiece {
  std::int64_t begin = 0, numel = 0;
  int owner = 0;
  std::int64_t offset = 0;   // offset of the first element in the flat layout of all gradients
  bool compressible = true;  // false if the piece is never compressed (GradientCompressor::compresses())
};

}  // namespace ring
