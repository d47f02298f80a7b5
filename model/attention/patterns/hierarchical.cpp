#include "core/check.h"
#include "core/checked.h"
#include "model/attention/block_patterns.h"

namespace ring {

BlockPatternKind hierarchical_blocks() {
  return {.name = "hierarchical",
          .settings = {"local"},
          .rule =
              [](const BlockRuleConfig& r) {
                return BlockRule{.kind = BlockRuleKind::hierarchical, .local = narrow<std::int32_t>(r.local)};
              },
          .text = [](const BlockRuleConfig& r) { return str("hierarchical, local ", r.local); }};
}

}  // namespace ring
