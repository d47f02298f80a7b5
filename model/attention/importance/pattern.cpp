// Blocks at the distances with the largest measured attention mass.
#include <algorithm>

#include "core/check.h"
#include "core/checked.h"
#include "model/attention/block_patterns.h"

namespace ring {
namespace {

// Keeps the newest blocks until masses are measured; then BlockImportance makes the patterns
// (model/attention/importance/importance.h).
BlockRule importance_rule(const BlockRuleConfig& r) {
  return {.kind = BlockRuleKind::local_global,
          .local = narrow<std::int32_t>(r.keep - r.first),
          .first = narrow<std::int32_t>(r.first),
          .keep = narrow<std::int32_t>(r.keep),
          .seed = r.seed};
}

std::string importance_text(const BlockRuleConfig& r) {
  return str("importance, local ", r.local, ", first ", r.first, ", keep ", r.keep, ", explore ", r.explore,
             ", interval ", r.interval, ", decay ", r.decay);
}

void validate_importance(const BlockRuleConfig& r, std::vector<SettingProblem>& errors) {
  if (!r.keeps.empty())
    errors.push_back("keep: expected one number for pattern: importance, whose budget is constant, got a list");
  const std::int64_t others = r.keep - r.local - r.first;
  if (min_keep(r) > r.local + r.first && r.explore >= others)
    errors.push_back(str("explore: ", r.explore, " blocks, but of keep: ", r.keep, " only ", others,
                         " are neither local nor first, and at least one is chosen by its importance. ",
                         others > 1 ? str("Set explore to ", others - 1, " or less") : "Leave explore out",
                         ", or raise keep"));
}

void validate_beside_importance(const AttentionConfig& c, std::vector<SettingProblem>& errors) {
  if (std::ranges::any_of(c.rules, selects_in_forward, block_pattern_of))
    errors.push_back(
        "rules: pattern: importance cannot be combined with content or learned in one layer. Put them into different "
        "layers (model.attention_layers)");
  if (!c.pools.empty())
    errors.push_back(
        "pools: pattern: importance cannot measure blocks in layers with pools. Leave pools out, or use different "
        "rules");
}

std::string endless_interval(const AttentionConfig& c, std::size_t i, const TrainingSizes& t) {
  if (c.rules[i].interval < t.steps) return "";
  return str("rules[", i, "].interval: ", c.rules[i].interval, ", but training ends with step ", t.steps,
             " (train.steps): no blocks are chosen, and the most recent ones are kept. Lower it, or train longer");
}

}  // namespace

BlockPatternKind importance_blocks() {
  return {.name = "importance",
          .settings = {"local", "first", "keep", "seed", "interval", "explore", "decay"},
          .chooser = BlockChooser::masses,
          .rule = importance_rule,
          .text = importance_text,
          .validate = validate_importance,
          .validate_section = validate_beside_importance,
          .idle_wait = endless_interval};
}

}  // namespace ring
