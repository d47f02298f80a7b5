#include <algorithm>

#include "core/check.h"
#include "core/counted.h"
#include "model/attention/block_patterns.h"
#include "model/attention/patterns/block_file.h"

namespace ring {
namespace {

// Throws Error if the file is invalid or its drawings do not cover the context.
void draw_from_file(const BlockRuleConfig& r, const HeadsOfRule& to, RulesOfHeads& all) try {
  const std::size_t before = all.rules.size();
  BlockFile::read(r.file).add_rules(to.heads, all.of_head, all.rules, all.bits);
  for (std::size_t i = before; i < all.rules.size(); ++i)
    if (const std::int64_t rows = all.rules[i].rows; rows * to.block < to.context)
      fail(r.file, ": ends after ", counted(rows, "query block"), ", but a context of ", to.context, " tokens has ",
           (to.context + to.block - 1) / to.block, " of ", to.block,
           ". Add lines for the others, or shorten model.context");
} catch (const Error& e) {
  fail("file: ", e.what());
}

void validate_file(const BlockRuleConfig& r, std::vector<SettingProblem>& errors) {
  if (r.file.empty())
    errors.push_back("file: expected the path of a text file with the blocks of pattern: file, got nothing");
}

void validate_beside_file(const AttentionConfig& c, std::vector<SettingProblem>& errors) {
  if (std::ranges::any_of(c.rules, [](const BlockRuleConfig& r) { return !r.keeps.empty(); }))
    errors.push_back(
        "rules: a keep that changes by tokens cannot be combined with pattern: file, which is read once. Give these "
        "heads a different pattern, or a constant keep");
}

}  // namespace

BlockPatternKind blocks_from_file() {
  return {.name = "file",
          .settings = {"file"},
          .draw = draw_from_file,
          .text = [](const BlockRuleConfig& r) { return "file " + r.file; },
          .validate = validate_file,
          .validate_section = validate_beside_file};
}

}  // namespace ring
