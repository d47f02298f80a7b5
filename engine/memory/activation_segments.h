#pragma once
// Segmented checkpointing, for steps in which not even the inputs of all blocks fit: the first blocks form segments,
// and only the input of each segment is saved. The backward reruns the forward of a segment, and only in that rerun
// does each block apply its own option (Chen et al. 2016). For the solver a segment is one part, with the options of
// its blocks.

#include "engine/memory/activation_options.h"

namespace ring {

struct Segments {
  std::size_t count = 0, blocks = 0;  // number of segments, and of parts in each segment
};

// Returns the parts after merging blocks into segments, the first of which begins at index `first`. All blocks of a
// segment use the same option, one of the first `options`, which do not offload.
PartOptions in_segments(const PartOptions&, Segments, std::size_t first, std::size_t options);

// Returns the segmentations worth trying: segments of 2, 3, 4, 6 and 8 blocks. At least one block stays outside all
// segments, because the backward begins with it.
std::vector<Segments> segments_of(std::size_t blocks);

}  // namespace ring
