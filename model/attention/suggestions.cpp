#include "model/attention/suggestions.h"

#include <algorithm>

namespace ring {
namespace {

constexpr std::int64_t kFirstSegment = 2048;  // first segment of LongNet (Ding et al. 2023)
constexpr std::int64_t kSinks = 4;            // sinks of StreamingLLM (Xiao et al. 2023)
constexpr std::int64_t kBlock = 128, kLocalBlocks = 16;

AttentionConfig dilated_to(std::int64_t context) {
  AttentionConfig a;
  a.kind = "dilated";
  std::int64_t rate = 1;
  for (std::int64_t segment = std::min(kFirstSegment, context);; segment = std::min(2 * segment, context), rate *= 2) {
    a.segments.push_back(segment);
    a.rates.push_back(rate);
    if (segment == context) return a;
  }
}

AttentionConfig blocks_by(const BlockRuleConfig& rule) {
  AttentionConfig a;
  a.kind = "block_sparse";
  a.block = kBlock;
  a.rules.push_back(rule);
  return a;
}

AttentionConfig hierarchical() {
  BlockRuleConfig rule;
  rule.pattern = "hierarchical";
  rule.local = kLocalBlocks;
  return blocks_by(rule);
}

// Returns block-sparse attention over `tokens` tokens: the first block, the newest blocks, and selected blocks. The
// newest blocks are 5/8 of all kept blocks, or 2 blocks if importance ranks the distances. This was best in the trials
// of docs/measured/attention.md.
AttentionConfig selected(const std::string& pattern, std::int64_t tokens) {
  BlockRuleConfig rule;
  rule.pattern = pattern;
  rule.first = 1;
  rule.keep = std::max<std::int64_t>(4, tokens / kBlock);
  rule.local = pattern == "importance" ? 2 : std::max<std::int64_t>(2, 5 * rule.keep / 8);
  AttentionConfig a = blocks_by(rule);
  if (pattern == "learned") a.index_distances = 32;
  return a;
}

AttentionConfig with_pools(AttentionConfig a) {
  a.pools = {kBlock};
  return a;
}

}  // namespace

AttentionConfig suggested_window(std::int64_t window) {
  AttentionConfig a;
  a.kind = "window";
  a.window = window;
  a.sinks = kSinks;
  return a;
}

std::vector<SuggestedAttention> suggested_attention(std::int64_t context, std::int64_t window) {
  return {
      {"dense", AttentionConfig()},
      {"window", suggested_window(window)},
      {"dilated", dilated_to(context)},
      {"hierarchical", hierarchical()},
      {"content", selected("content", window)},
      {"learned", selected("learned", window)},
      {"importance", selected("importance", window)},
      {"pools", with_pools(suggested_window(window))},
  };
}

}  // namespace ring
