#include "optim/kinds.h"

#include "core/check.h"
#include "optim/adamw.h"

namespace ring {

std::map<std::string, OptimizerKind>& optimizer_kinds() {
  static std::map<std::string, OptimizerKind> kinds = {{"adamw", adamw()}};
  return kinds;
}

const OptimizerKind& optimizer_kind(const OptimizerConfig& config) {
  const auto found = optimizer_kinds().find(config.kind);
  RING_CHECK(found != optimizer_kinds().end(), "optimizer.kind: ", config.kind, " is none");
  return found->second;
}

}  // namespace ring
