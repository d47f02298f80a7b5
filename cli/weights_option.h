#pragma once
// The option of the command line that says which weights of a checkpoint to take.

#include "evaluate/session.h"

namespace CLI {
class App;
class Option;
}  // namespace CLI

namespace ring {

// --weights: latest or ema.
CLI::Option* add_weights(CLI::App& command, SavedWeights& choice);

}  // namespace ring
