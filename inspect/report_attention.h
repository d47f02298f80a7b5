#pragma once
// Pictures of attention patterns for a report.

#include <string>

#include "model/config.h"

namespace ring {

// Draws one SVG panel for each kind of attention that is not dense (at most six), using the first layer of the kind.
// Returns "" if all layers are dense. `model` must be resolved.
std::string attention_pictures(const ModelConfig& model);

}  // namespace ring
