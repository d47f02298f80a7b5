#pragma once
#include <optional>

#include "kernels/gradient_codes.h"
#include "parallel/config.h"

namespace ring {

// Returns the code in which ranks send gradients; f32 for sparse. Returns nullopt if gradients are not compressed: for
// none, and for auto, which a run replaces by its choice before it starts.
std::optional<GradientCoding> coding_of(const ParallelConfig&);

}  // namespace ring
