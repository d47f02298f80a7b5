#include "core/check.h"
#include "core/checked.h"
#include "model/attention/block_patterns.h"

namespace ring {

BlockPatternKind local_global_blocks() {
  return {.name = "local_global",
          .settings = {"local", "first", "every"},
          .rule =
              [](const BlockRuleConfig& r) {
                return BlockRule{.kind = BlockRuleKind::local_global,
                                 .local = narrow<std::int32_t>(r.local),
                                 .first = narrow<std::int32_t>(r.first),
                                 .every = narrow<std::int32_t>(r.every)};
              },
          .text =
              [](const BlockRuleConfig& r) {
                return str("local_global, local ", r.local, ", first ", r.first,
                           r.every ? str(", every ", r.every) : "");
              }};
}

}  // namespace ring
