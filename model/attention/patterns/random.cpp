// Random blocks (BigBird: Zaheer et al. 2020).
#include "core/check.h"
#include "core/checked.h"
#include "model/attention/block_patterns.h"

namespace ring {

BlockPatternKind random_blocks() {
  return {
      .name = "random",
      .settings = {"local", "density", "seed"},
      .rule =
          [](const BlockRuleConfig& r) {
            return BlockRule{.kind = BlockRuleKind::random,
                             .local = narrow<std::int32_t>(r.local),
                             .threshold = random_threshold(r.density),
                             .seed = r.seed};
          },
      .text =
          [](const BlockRuleConfig& r) {
            return str("random, local ", r.local, ", density ", r.density, ", seed ", r.seed);
          },
      .validate =
          [](const BlockRuleConfig& r, std::vector<SettingProblem>& errors) {
            if (random_threshold(r.density) == 0)
              errors.push_back(str(
                  "density: expected the share of blocks that pattern: random keeps, such as 0.1, got ", r.density));
          }};
}

}  // namespace ring
