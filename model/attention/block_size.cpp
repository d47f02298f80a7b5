#include "model/attention/block_size.h"

#include <algorithm>

#include "model/attention/block_patterns.h"
#include "model/attention/kinds.h"

namespace ring {
namespace {

// Converts a number of blocks of `from` tokens to blocks of `to` tokens, rounded up.
struct Scale {
  std::int64_t from, to;
  std::int64_t operator()(std::int64_t blocks) const { return (blocks * from + to - 1) / to; }
};

// Scales a rule that selects blocks. Forced blocks count towards `keep`, so `keep` must leave room for at least one
// selected block.
void scale_selection(BlockRuleConfig& r, const BlockRuleConfig& before, const Scale& scale) {
  r.local = std::max(r.local, std::min<std::int64_t>(before.local, 2));
  const std::int64_t min = r.local + r.first + 1;
  r.explore = scale(r.explore);
  r.keep = std::max({scale(r.keep), min, r.explore ? min + 1 : 0});
  for (TokenChange& c : r.keeps)
    c.value = static_cast<double>(std::max(scale(static_cast<std::int64_t>(c.value)), min));
  r.explore = std::min(r.explore, r.keep - min);
}

void scale_rule(BlockRuleConfig& r, const Scale& scale) {
  const BlockRuleConfig before = r;
  r.local = scale(r.local), r.first = scale(r.first);
  if (chooses_blocks(r)) scale_selection(r, before, scale);
}

}  // namespace

bool can_change_block_size(const AttentionConfig& c) {
  return std::ranges::all_of(c.rules, &std::string::empty, &BlockRuleConfig::file);
}

AttentionConfig with_block_size(AttentionConfig c, std::int64_t block) {
  const Scale scale{block_size_of(c), block};
  c.block = block;
  if (scale.from == scale.to) return c;
  for (BlockRuleConfig& r : c.rules) scale_rule(r, scale);
  return c;
}

}  // namespace ring
