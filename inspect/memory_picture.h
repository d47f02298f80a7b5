#pragma once
// Draws the memory of one step: what persists, what each part of the model saves between forward and backward, and what
// each part needs while it runs.

#include <string>

#include "engine/planner.h"

namespace ring {

std::string memory_picture(const PlannedStep&);  // returns SVG

}  // namespace ring
