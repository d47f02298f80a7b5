#include "core/check.h"
#include "core/checked.h"
#include "model/attention/block_patterns.h"

namespace ring {

BlockPatternKind strided_blocks() {
  return {
      .name = "strided",
      .settings = {"local", "every"},
      .rule =
          [](const BlockRuleConfig& r) {
            return BlockRule{.kind = BlockRuleKind::strided,
                             .local = narrow<std::int32_t>(r.local),
                             .every = narrow<std::int32_t>(r.every)};
          },
      .text = [](const BlockRuleConfig& r) { return str("strided, local ", r.local, ", every ", r.every); },
      .validate =
          [](const BlockRuleConfig& r, std::vector<SettingProblem>& errors) {
            if (r.every == 0)
              errors.push_back("every: expected the distance between columns of pattern: strided, at least 1, got 0");
          }};
}

}  // namespace ring
