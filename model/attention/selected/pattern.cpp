// Blocks selected by their content (kernels/attention/selected/block_select.h).
#include "core/check.h"
#include "core/checked.h"
#include "model/attention/block_patterns.h"

namespace ring {
namespace {

BlockRule content_rule(const BlockRuleConfig& r) {
  return {.kind = BlockRuleKind::content,
          .local = narrow<std::int32_t>(r.local),
          .first = narrow<std::int32_t>(r.first),
          .keep = narrow<std::int32_t>(r.keep),
          .mass = static_cast<float>(r.mass)};
}

// Returns the number of kept blocks, "8", or its first and last value, "64 to 16".
std::string keep_text(const BlockRuleConfig& r) {
  if (r.keeps.empty()) return str(r.keep);
  return str(r.keeps.front().value, " to ", r.keeps.back().value);
}

std::string content_text(const BlockRuleConfig& r) {
  return str(r.pattern, ", local ", r.local, ", first ", r.first, ", keep ", r.mass < 1 ? "at most " : "", keep_text(r),
             r.mass < 1 ? str(", mass ", r.mass) : "");
}

}  // namespace

BlockPatternKind content_blocks() {
  return {.name = "content",
          .settings = {"local", "first", "keep", "mass"},
          .chooser = BlockChooser::content,
          .rule = content_rule,
          .text = content_text};
}

}  // namespace ring
