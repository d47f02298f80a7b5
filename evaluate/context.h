#pragma once
// The context of a trained model, where a user asks for a different one.

#include <cstdint>

#include "model/config.h"

namespace ring {

// Sets model.context, as --context asks. Throws Error if the model has learned a different number of positions.
void set_context(ModelConfig&, std::int64_t context);

}  // namespace ring
