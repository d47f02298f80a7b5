#pragma once
// Pictures of what a model attends over, in a report.

#include <string>

#include "model/config.h"

namespace ring {

// SVG with a panel for each kind of attention that is not dense, of the first layer that has it, at most six; empty:
// there is none. model: resolved.
std::string attention_pictures(const ModelConfig& model);

}  // namespace ring
