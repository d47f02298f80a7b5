#pragma once
// The optimizers that there are.

#include <map>
#include <string>

#include "optim/update_rule.h"

namespace ring {

// By the name that optimizer.kind gives; programs may add theirs before settings are read.
std::map<std::string, OptimizerKind>& optimizer_kinds();
const OptimizerKind& optimizer_kind(const std::string& name);

// What updates all that another kind does not take.
inline constexpr const char* kElementKind = "adamw";
// What optimizer.muon is for.
inline constexpr const char* kMuonKind = "muon";

}  // namespace ring
