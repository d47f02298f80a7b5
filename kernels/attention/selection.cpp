#include "kernels/attention/selection.h"

#include <algorithm>
#include <bit>
#include <map>
#include <mutex>
#include <tuple>

#include "core/check.h"
#include "core/checked.h"
#include "kernels/attention/blocks.h"

namespace ring {

std::int32_t blocks_of(const Pattern& pattern, const Span& s) {
  if (s.count == 0) return 0;
  const std::int64_t size = pattern.blocks->block(), end = s.position - pattern.origin(s.document) + s.count;
  return narrow<std::int32_t>((end + size - 1) / size);
}

std::int32_t max_blocks(const Pattern& pattern, const std::vector<Span>& spans) {
  std::int32_t max = 0;
  for (const Span& s : spans) max = std::max(max, blocks_of(pattern, s));
  return max;
}

std::vector<std::int32_t> first_blocks(const Pattern& pattern, const std::vector<Span>& spans) {
  std::vector<std::int32_t> first = {0};
  for (const Span& s : spans) first.push_back(narrow<std::int32_t>(std::int64_t{first.back()} + blocks_of(pattern, s)));
  return first;
}

namespace {

// Returns the maximum number of key blocks that a rule other than a content rule keeps for any query block < `blocks`.
std::int64_t max_kept_by_rule(const BlockRule& rule, std::int32_t head, std::int32_t blocks) {
  std::int64_t max = 1;
  for (std::int32_t q = 0; q < blocks; ++q) {
    std::int64_t kept = 0;
    for (std::int32_t k = 0; k <= q; ++k) kept += rule.keeps(head, q, k);
    max = std::max(max, kept);
  }
  return max;
}

// Caches results of max_kept_by_rule(), because calls, layers and steps have the same rules. Rounds the number of
// blocks up to a power of two, so that documents of different lengths share results. Thread-safe.
class CountedRules {
 public:
  std::int64_t operator()(const BlockPattern& pattern, std::int32_t head, std::int32_t blocks) {
    const auto rounded = static_cast<std::int32_t>(std::bit_ceil(static_cast<std::uint32_t>(blocks)));
    const std::lock_guard lock(mutex_);
    // Heads with the same rule keep the same blocks, unless the rule is random.
    const bool random = pattern.rule(head).kind == BlockRuleKind::random;
    const std::tuple key{pattern.version(), random ? head : -1 - pattern.rule_index(head), rounded};
    if (const auto found = kept_.find(key); found != kept_.end()) return found->second;
    if (kept_.size() >= kMost) kept_.clear();
    return kept_[key] = max_kept_by_rule(pattern.rule(head), head, rounded);
  }

 private:
  static constexpr std::size_t kMost = 1024;
  std::mutex mutex_;
  std::map<std::tuple<std::uint64_t, std::int32_t, std::int32_t>, std::int64_t> kept_;
};

}  // namespace

std::int64_t max_kept_blocks(const BlockPattern& pattern, std::int64_t kv_heads, std::int32_t blocks) {
  static CountedRules counted;
  std::int64_t max = 1;
  for (std::int32_t h = 0; h < kv_heads; ++h) {
    const BlockRule& rule = pattern.rule(h);
    max = std::max(max, rule.kind == BlockRuleKind::content ? rule.keep : counted(pattern, h, blocks));
  }
  return std::min<std::int64_t>(max, std::max(blocks, 1));
}

std::int64_t max_kept_blocks(const Pattern& pattern, std::int64_t kv_heads, const std::vector<Span>& spans) {
  return max_kept_blocks(*pattern.blocks, kv_heads, max_blocks(pattern, spans));
}

void check(const BlockSelection& s, const Pattern& pattern, const std::vector<Span>& queries,
           const std::vector<Span>& keys, std::int64_t kv_heads, const char* op) {
  RING_CHECK(s.kept.defined() == pattern.selects(), op,
             s.kept.defined() ? ": a selection for a pattern that has rules for all heads"
                              : ": a pattern that selects blocks, without a selection");
  if (!s.kept.defined() || queries.empty()) return;
  const bool whole = s.rows.empty();
  RING_CHECK(!whole || queries == keys, op,
             ": a selection is for whole documents, but spans of queries and keys differ");
  RING_CHECK(whole || s.rows.size() == queries.size(), op, ": a selection has rows for ", s.rows.size(), " of ",
             queries.size(), " spans");
  std::int32_t rows = 0, max = 0;
  for (std::size_t b = 0; b < queries.size(); ++b) {
    const Span& q = queries[b];
    RING_CHECK(!whole || q.count == 0 || q.position == q.document, op,
               ": a selection is for whole documents, not from position ", q.position - q.document, " on");
    const std::int32_t blocks = blocks_of(pattern, q);
    const std::int64_t first = q.count == 0 ? 0 : (q.position - pattern.origin(q.document)) / pattern.blocks->block();
    RING_CHECK(whole || q.count == 0 || s.rows[b] + first >= 0, op, ": a selection has no row ", s.rows[b] + first);
    rows = whole ? rows + blocks : std::max(rows, blocks == 0 ? 0 : s.rows[b] + blocks);
    max = std::max(max, blocks);
  }
  RING_CHECK(s.kept.dtype() == DType::i32 && s.kept.is_contiguous() && s.kept.shape().size() == 3 &&
                 (whole ? s.kept.dim(0) == rows : s.kept.dim(0) >= rows) && s.kept.dim(1) == kv_heads &&
                 (s.kept.dim(2) > 0 || max == 0),
             op, ": the selection is ", describe(s.kept), ", expected i32[", rows, ", ", kv_heads,
             ", the kept blocks of a row]");
}

}  // namespace ring
