#include "optim/kinds.h"

#include <utility>

#include "core/check.h"
#include "optim/adamw.h"
#include "optim/muon.h"

namespace ring {

std::map<std::string, OptimizerKind>& optimizer_kinds() {
  static std::map<std::string, OptimizerKind> kinds = {{kElementKind, adamw()}, {kMuonKind, muon()}};
  return kinds;
}

StateKind moment_kind(std::string name, MomentType type, Fp8Moment fp8) {
  if (type == MomentType::fp8) return {std::move(name), DType::u8, fp8};
  return {std::move(name), type == MomentType::bf16 ? DType::bf16 : DType::f32};
}

const OptimizerKind& optimizer_kind(const std::string& name) {
  const auto found = optimizer_kinds().find(name);
  RING_CHECK(found != optimizer_kinds().end(), "optimizer.kind: ", name, " does not exist");
  return found->second;
}

}  // namespace ring
