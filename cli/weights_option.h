#pragma once
// The options --weights and --adapter: which weights to use.

#include "cli/command.h"
#include "evaluate/session.h"

namespace ring {

// Adds --weights: latest or ema.
Option add_weights(Command command, SavedWeights& choice);
// Adds --adapter: the folder of a low-rank adapter, for merge_peft_adapter().
Option add_adapter(Command command, std::string& folder);
// Opens a session, and merges the adapter into its weights if `adapter` is not empty.
Session open_session(const std::string& run, const SessionOptions&, const std::string& adapter);

}  // namespace ring
