#include "kernels/attention/blocks.h"

#include <algorithm>

#include "core/check.h"
#include "core/fields.h"

namespace ring {
namespace {

void check_rule(const BlockRule& r, std::size_t words) {
  if (r.kind == BlockRuleKind::drawn) {
    RING_CHECK(r.rows > 0 && r.words > 0 && r.first_word >= 0 &&
                   static_cast<std::size_t>(r.first_word + std::int64_t{r.rows} * r.words) <= words,
               "block pattern: a drawing of ", r.rows, " rows of ", r.words, " words from word ", r.first_word,
               " on does not fit into ", words, " words");
    return;
  }
  RING_CHECK(r.kind != BlockRuleKind::content || r.keep >= r.local + r.first, "block pattern: content keeps ", r.keep,
             " blocks, but ", r.local, " local and ", r.first, " first ones are among them");
  RING_CHECK(r.mass > 0 && r.mass <= 1, "block pattern: a mass of ", r.mass,
             ", expected a share above 0 and at most 1");
  RING_CHECK(r.local >= 1 && r.first >= 0 && r.every >= 0, "block pattern: local ", r.local, ", first ", r.first,
             " and every ", r.every, " blocks: local must be at least 1, the others at least 0");
}

// Returns an FNV-1a hash over words instead of bytes, because a drawn rule may have 2^26 words. Folding the upper half
// of the hash into the lower half lets the upper bits of words affect all bits.
std::uint64_t hash_words(const std::uint32_t* words, std::int64_t count, std::uint64_t hash) {
  for (const std::uint32_t* word = words; word != words + count; ++word) {
    hash = (hash ^ *word) * 1099511628211ull;
    hash ^= hash >> 32;
  }
  return hash;
}

// Returns a hash of all fields that the kind of rule uses.
std::uint64_t hash_rule(const BlockRule& r, const std::vector<std::uint32_t>& bits, std::uint64_t hash) {
  const int kind = static_cast<int>(r.kind);
  switch (r.kind) {
    case BlockRuleKind::local_global: return hash_text(str(kind, ' ', r.local, ' ', r.first, ' ', r.every, '\n'), hash);
    case BlockRuleKind::strided: return hash_text(str(kind, ' ', r.local, ' ', r.every, '\n'), hash);
    case BlockRuleKind::hierarchical: return hash_text(str(kind, ' ', r.local, '\n'), hash);
    case BlockRuleKind::random: return hash_text(str(kind, ' ', r.local, ' ', r.threshold, ' ', r.seed, '\n'), hash);
    case BlockRuleKind::content:
      return hash_text(str(kind, ' ', r.local, ' ', r.first, ' ', r.keep, r.mass < 1 ? str(' ', r.mass) : "", '\n'),
                       hash);
    case BlockRuleKind::drawn: break;
  }
  hash = hash_text(str(kind, ' ', r.rows, ' ', r.words, ' '), hash);
  return hash_words(bits.data() + r.first_word, std::int64_t{r.rows} * r.words, hash);
}

}  // namespace

BlockPattern::BlockPattern(std::int32_t block, std::vector<BlockRule> rules, std::vector<std::int32_t> of_head,
                           std::vector<std::uint32_t> bits, std::uint64_t generation)
    : block_(block),
      rules_(std::move(rules)),
      of_head_(std::move(of_head)),
      bits_(std::make_shared<const std::vector<std::uint32_t>>(std::move(bits))),
      generation_(generation) {
  RING_CHECK(block == 64 || block == 128, "block pattern: a block of ", block, " tokens, expected 64 or 128");
  RING_CHECK(!rules_.empty(), "block pattern: no rule");
  for (const std::int32_t r : of_head_)
    RING_CHECK(r >= 0 && r < static_cast<std::int32_t>(rules_.size()), "block pattern: a head follows rule ", r, " of ",
               rules_.size(), ", counted from 0");
  version_ = hash_text(str(block_, '\n'));
  for (BlockRule& r : rules_) {
    check_rule(r, bits_->size());
    if (r.kind == BlockRuleKind::drawn) r.bits = bits_->data() + r.first_word;
    version_ = hash_rule(r, *bits_, version_);
  }
  for (const std::int32_t r : of_head_) version_ = hash_text(str(r, ' '), version_);
}

BlockPattern BlockPattern::with_rules(std::vector<BlockRule> rules, std::vector<std::uint32_t> bits) const {
  return BlockPattern(block_, std::move(rules), of_head_, std::move(bits)).as_successor_of(*this);
}

BlockPattern BlockPattern::as_successor_of(const BlockPattern& before) const {
  BlockPattern p = *this;
  p.generation_ = before.generation_ + 1;
  p.first_ = before.first_ ? before.first_ : std::make_shared<const BlockPattern>(before);
  return p;
}

BlockPattern BlockPattern::of_heads(std::int32_t first, std::int32_t count) const {
  RING_CHECK(first >= 0 && count > 0, "block pattern: ", count, " heads from ", first, " on");
  std::vector<BlockRule> rules;
  for (const BlockRule& rule : rules_) rules.push_back(rule.from_head(first));
  std::vector<std::int32_t> of_head;
  for (std::int32_t head = 0; head < count; ++head) of_head.push_back(rule_index(first + head));
  BlockPattern some(block_, std::move(rules), std::move(of_head), *bits_, generation_);
  if (first_) some.first_ = std::make_shared<const BlockPattern>(first_->of_heads(first, count));
  return some;
}

std::int32_t BlockPattern::rule_index(std::int32_t kv_head) const {
  return of_head_.empty() ? 0 : of_head_[static_cast<std::size_t>(kv_head) % of_head_.size()];
}

bool BlockPattern::selects() const {
  const auto by_content = [&](std::size_t i) { return rules_[i].kind == BlockRuleKind::content; };
  if (of_head_.empty()) return by_content(0);
  return std::ranges::any_of(of_head_, [&](std::int32_t i) { return by_content(static_cast<std::size_t>(i)); });
}

void BlockPattern::check_covers(std::int64_t length, const char* op) const {
  for (const BlockRule& r : rules_)
    if (r.kind == BlockRuleKind::drawn && std::int64_t{r.rows} * block_ < length)
      fail(op, ": a row of ", length, " tokens has ", (length + block_ - 1) / block_, " blocks of ", block_,
           ", but the pattern's file ends after ", r.rows, ". Add lines for the others, or shorten the context");
}

BlockLists lists_of(const BlockPattern& pattern, Stationary owner, std::int64_t kv_heads, std::int64_t length,
                    bool causal) {
  pattern.check_covers(length, "block lists");
  const auto halves = static_cast<std::int32_t>((length + kListColumns - 1) / kListColumns);
  const std::int32_t per_block = pattern.block() / kListColumns;
  const auto kept = [&](std::int32_t head, std::int32_t row, std::int32_t column) {
    if (row >= halves) return BlockCoverage::none;
    const std::int32_t a = row / per_block, b = column / per_block;
    const bool keeps = owner == Stationary::q ? pattern.keeps(head, a, b) : pattern.keeps(head, b, a);
    return keeps ? coverage_of(owner, row, column, causal) : BlockCoverage::none;
  };
  BlockLists lists{(halves + 1) / 2, {0}, {}};
  for (std::int32_t head = 0; head < kv_heads; ++head)
    for (std::int32_t tile = 0; tile < lists.tiles; ++tile) {
      for (std::int32_t column = 0; column < halves; ++column) {
        const BlockCoverage first = kept(head, 2 * tile, column), second = kept(head, 2 * tile + 1, column);
        if (first != BlockCoverage::none || second != BlockCoverage::none)
          lists.entries.push_back(list_entry(column, first, second));
      }
      lists.begins.push_back(static_cast<std::int32_t>(lists.entries.size()));
    }
  return lists;
}

}  // namespace ring
