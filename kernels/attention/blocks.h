#pragma once
// Block patterns: which blocks of pairs are kept, by closed forms that cost nothing to store or by a drawing, and the
// lists of them that kernels walk.

#include <cstdint>
#include <memory>
#include <vector>

#include "core/host_device.h"
#include "kernels/attention/stationary.h"

namespace ring {

// All numbers are in blocks. d = query block - key block; block pairs with d < 0 are kept only where the attention is
// not causal, and then by |d|. d = 0 is kept by every rule.
enum class BlockRuleKind : std::uint8_t {
  local_global,  // d < local, or key block < first, or key block a multiple of `every` (0: none)
  strided,       // d < local, or d a multiple of `every` (block-dilated; 0: none)
  hierarchical,  // level l keeps every 2^l-th of the distances [local (2^l - 1), local (2^(l+1) - 1)): log many
  random,        // d < local, and a share of all, drawn by (seed, KV head, blocks) (Zaheer et al. 2020)
  drawn,         // from a file
  content,       // d < local, key block < first, and what a selection adds, at most `keep` in all (block_select.h)
};

struct BlockRule {
  BlockRuleKind kind = BlockRuleKind::local_global;
  std::int32_t local = 1, first = 0, every = 0;
  std::int32_t keep = 0;        // content: blocks of each query block, those of local and first among them
  float mass = 1;               // content: fewer, where their share of the softmax reaches it (block_select.h); 1: off
  std::uint32_t threshold = 0;  // random: kept where 32 random bits are below it, see random_threshold
  std::uint64_t seed = 0;
  // drawn: bit k of row q, `words` words each, from word `first_word` of the pattern's bits on. The pattern sets `bits`
  // to that word. Nothing is kept beyond `rows`.
  std::int64_t first_word = 0;
  std::int32_t rows = 0, words = 0;
  const std::uint32_t* bits = nullptr;

  // The rule of head + first as one of `head`.
  BlockRule from_head(std::int32_t first) const {
    BlockRule r = *this;
    r.seed += kSeedOfHead * static_cast<std::uint64_t>(first);
    return r;
  }

  // A rule of content stands for the newest `keep`, the most that a selection has, where costs and pictures ask;
  // kernels ask the selection.
  RING_HOST_DEVICE bool keeps(std::int32_t head, std::int32_t q, std::int32_t k) const {
    const std::int32_t d = q < k ? k - q : q - k;
    if (d == 0) return true;
    switch (kind) {
      case BlockRuleKind::local_global: return d < local || k < first || (every > 0 && k % every == 0);
      case BlockRuleKind::strided: return d < local || (every > 0 && d % every == 0);
      case BlockRuleKind::hierarchical: {
        std::int32_t step = 1;  // 2^l, l = floor(log2(d / local + 1))
        for (std::int32_t n = d / local + 1; n > 1; n /= 2) step *= 2;
        return d % step == 0;
      }
      case BlockRuleKind::random: return d < local || mix(head, q, k) < threshold;
      case BlockRuleKind::drawn:
        return q < rows && k < words * 32 && (bits[std::int64_t{q} * words + k / 32] >> (k % 32) & 1u);
      case BlockRuleKind::content: return d < keep;
    }
    return false;
  }

 private:
  static constexpr std::uint64_t kSeedOfHead = 0x9E3779B97F4A7C15u;  // seeds of neighbouring heads are so far apart

  // A hash of 32 bits (the finaliser of MurmurHash3, public domain, over the mixed arguments).
  RING_HOST_DEVICE std::uint32_t mix(std::int32_t head, std::int32_t q, std::int32_t k) const {
    std::uint64_t x = seed + kSeedOfHead * (static_cast<std::uint64_t>(head) + 1);
    x ^= static_cast<std::uint64_t>(static_cast<std::uint32_t>(q)) << 32 | static_cast<std::uint32_t>(k);
    x = (x ^ x >> 33) * 0xff51afd7ed558ccdu;
    x = (x ^ x >> 33) * 0xc4ceb9fe1a85ec53u;
    return static_cast<std::uint32_t>(x >> 32 ^ x);
  }
};

constexpr std::uint32_t random_threshold(double density) {
  return density >= 1 ? ~0u : static_cast<std::uint32_t>(density * 4294967296.0);
}

// Does not change: during training a changed pattern is a new object, see changed(). Whoever recorded work with the old
// one has to record it anew.
class BlockPattern {
 public:
  // KV head h follows rules[of_head[h % of_head.size()]]; no of_head: all heads the first rule. bits: of drawn rules.
  BlockPattern(std::int32_t block, std::vector<BlockRule> rules, std::vector<std::int32_t> of_head = {},
               std::vector<std::uint32_t> bits = {}, std::uint64_t generation = 0);
  // The next generation: other rules for the same heads.
  BlockPattern changed(std::vector<BlockRule> rules, std::vector<std::uint32_t> bits = {}) const;
  // This pattern as the next generation of another one, made in any way.
  BlockPattern following(const BlockPattern& before) const;
  // Heads first .. first + count as a pattern of their own, numbered from 0: what a slice of the heads keeps.
  BlockPattern of_heads(std::int32_t first, std::int32_t count) const;

  std::int32_t block() const { return block_; }
  std::int32_t rule_of(std::int32_t kv_head) const;  // its number
  const BlockRule& rule(std::int32_t kv_head) const { return rules_[static_cast<std::size_t>(rule_of(kv_head))]; }
  bool keeps(std::int32_t kv_head, std::int32_t q, std::int32_t k) const { return rule(kv_head).keeps(kv_head, q, k); }
  const std::vector<std::uint32_t>& bits() const { return *bits_; }
  bool selects() const;  // some head follows a rule of content: a call needs a selection (selection.h)

  // A hash of everything that the kept blocks depend on, the same in every process: caches of lists are keyed by it,
  // and measured choices by that of the first generation (of some heads: of the first generation of these).
  std::uint64_t version() const { return version_; }
  std::uint64_t first_version() const { return first_ ? first_->version_ : version_; }
  std::uint64_t generation() const { return generation_; }  // how often it changed

  // Error, naming `op`: a drawn rule has fewer blocks than a row of this length.
  void check_covers(std::int64_t length, const char* op) const;

 private:
  std::int32_t block_;
  std::vector<BlockRule> rules_;
  std::vector<std::int32_t> of_head_;
  std::shared_ptr<const std::vector<std::uint32_t>> bits_;  // where rules of copies point to, too
  std::uint64_t version_, generation_;
  std::shared_ptr<const BlockPattern> first_;  // the first generation; null: this is it
};

// The lists that GPU kernels walk. An owner's tile is 128 rows (queries, or keys): those at positions 128 i on. For
// each KV head and tile its entries, ascending: a block of 64 columns, times 16, plus two bits for the first 64 rows of
// the tile and, above them, two for the others. Rows that start beyond the length keep nothing; that the last 64 rows
// or columns may end beyond it is not marked.
constexpr std::int32_t kListRows = 128, kListColumns = 64;
enum class BlockCoverage : std::uint8_t { none = 0, partly = 1, wholly = 2 };  // partly: cut by the causal diagonal
RING_HOST_DEVICE constexpr std::int32_t list_entry(std::int32_t column_block, BlockCoverage first,
                                                   BlockCoverage second) {
  return column_block * 16 + static_cast<std::int32_t>(second) * 4 + static_cast<std::int32_t>(first);
}
RING_HOST_DEVICE constexpr std::int32_t list_column(std::int32_t entry) { return (entry >> 4) * kListColumns; }
RING_HOST_DEVICE constexpr BlockCoverage list_coverage(std::int32_t entry, int half) {
  return static_cast<BlockCoverage>(entry >> (2 * half) & 3);
}

// What causality leaves of the owner's rows 64 row on and the columns 64 column on.
RING_HOST_DEVICE constexpr BlockCoverage coverage_of(Stationary owner, std::int32_t row, std::int32_t column,
                                                     bool causal) {
  if (!causal) return BlockCoverage::wholly;
  if (row == column) return BlockCoverage::partly;
  return (column < row) == (owner == Stationary::q) ? BlockCoverage::wholly : BlockCoverage::none;
}

// For every KV head and tile, entries[begins[head tiles + tile]] up to the next one's: what lists on devices must
// equal.
struct BlockLists {
  std::int32_t tiles = 0;  // of a head
  std::vector<std::int32_t> begins, entries;
};
BlockLists lists_of(const BlockPattern&, Stationary, std::int64_t kv_heads, std::int64_t length, bool causal);

}  // namespace ring
