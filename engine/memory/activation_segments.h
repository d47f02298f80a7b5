#pragma once
// Where not even the inputs of all blocks fit: the first blocks lie in segments, of which only the first one's input is
// kept. The backward runs the forward of a segment again, and only then does each of its blocks treat its activations
// in its way (Chen et al. 2016). For the solver a segment is one part, whose options are ways of its blocks.

#include "engine/memory/activation_options.h"

namespace ring {

struct Segments {
  std::size_t count = 0, blocks = 0;  // how many, of how many parts each
};

// The parts that lie in segments, from `first` on, as one part for each of these; all blocks of a segment have the same
// option, of the first `options`, which leave nothing to the host.
PartOptions in_segments(const PartOptions&, Segments, std::size_t first, std::size_t options);

// Those worth to be tried for so many blocks: of 2, 3, 4, 6 and 8 blocks, and at least one block is in none, since the
// backward begins with it.
std::vector<Segments> segments_of(std::size_t blocks);

}  // namespace ring
