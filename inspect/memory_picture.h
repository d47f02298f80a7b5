#pragma once
// The memory of one step as a picture: what lasts, what each part of the model keeps from its forward to its backward,
// and what each needs while it runs.

#include <string>

#include "engine/planner.h"

namespace ring {

std::string memory_picture(const PlannedStep&);  // SVG

}  // namespace ring
