#pragma once
// The available optimizers.

#include <map>
#include <string>

#include "optim/update_rule.h"

namespace ring {

// Returns the optimizers by name, as in optimizer.kind. Programs may add optimizers before settings are read.
std::map<std::string, OptimizerKind>& optimizer_kinds();
const OptimizerKind& optimizer_kind(const std::string& name);

// Optimizer kind for the parameters that the configured kind does not support (UpdateRule::takes()).
inline constexpr const char* kElementKind = "adamw";
// The kind that is configured by the section optimizer.muon.
inline constexpr const char* kMuonKind = "muon";

}  // namespace ring
