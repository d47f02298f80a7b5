#pragma once
// Overrides the context of a trained model.

#include <cstdint>

#include "model/config.h"

namespace ring {

// Sets model.context (for --context). Throws Error if the model has learned positions for a different context.
void set_context(ModelConfig&, std::int64_t context);

}  // namespace ring
