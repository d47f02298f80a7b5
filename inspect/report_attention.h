#pragma once
// Pictures of attention patterns for a report.

#include <string>

#include "model/config.h"

namespace ring {

// Draws one SVG panel per kind of attention that is not dense (at most six), each for the first layer of that kind.
// Returns "" if all layers are dense. `model` must be resolved.
std::string attention_pictures(const ModelConfig& model);

}  // namespace ring
