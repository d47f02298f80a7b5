#pragma once
// Block patterns: the blocks of pairs that are kept, given by closed forms that need no storage or by a bit matrix from
// a file, and the lists of kept blocks that kernels walk.

#include <cstdint>
#include <memory>
#include <vector>

#include "core/host_device.h"
#include "kernels/attention/stationary.h"

namespace ring {

// All numbers are in blocks; d = query block - key block. Every rule keeps d = 0. Block pairs with d < 0 are kept only
// if the attention is not causal, by the same rule on |d|.
enum class BlockRuleKind : std::uint8_t {
  local_global,  // d < local, or key block < first, or key block is a multiple of `every` if every > 0
  strided,       // d < local, or d is a multiple of `every` if every > 0 (block-dilated)
  hierarchical,  // level l keeps every 2^l-th distance of [local (2^l - 1), local (2^(l+1) - 1)): O(log d) blocks
  random,        // d < local, or chosen at random by a hash of (seed, KV head, both blocks) (Zaheer et al. 2020)
  drawn,         // a bit matrix, read from a file
  content,       // d < local, or key block < first, or selected; at most `keep` key blocks (block_select.h)
};

// A rule and its settings; fields of other kinds are not used.
struct BlockRule {
  BlockRuleKind kind = BlockRuleKind::local_global;
  std::int32_t local = 1, first = 0, every = 0;
  std::int32_t keep = 0;        // content: key blocks per query block, including local and first ones
  float mass = 1;               // content: stops early once this share of the softmax is kept (block_select.h); 1: off
  std::uint32_t threshold = 0;  // random: a block is kept if its 32 random bits are below this (random_threshold)
  std::uint64_t seed = 0;
  // drawn: key block k of query block q is kept if bit k of row q is set. A row has `words` words. Row 0 starts at word
  // `first_word` of BlockPattern::bits(), to which BlockPattern points `bits`. Query blocks >= rows keep only d = 0.
  std::int64_t first_word = 0;
  std::int32_t rows = 0, words = 0;
  const std::uint32_t* bits = nullptr;

  // Returns a rule whose head h makes the choices that head h + first of this rule makes.
  BlockRule from_head(std::int32_t first) const {
    BlockRule r = *this;
    r.seed += kSeedOfHead * static_cast<std::uint64_t>(first);
    return r;
  }

  // Returns true if head `head` keeps the block of query block q and key block k. For `content`, assumes the newest
  // `keep` blocks are selected: an upper bound for costs and pictures. Kernels read the selection instead.
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
  static constexpr std::uint64_t kSeedOfHead = 0x9E3779B97F4A7C15u;  // distance between seeds of consecutive heads

  // Returns a 32-bit hash: the finaliser of MurmurHash3 (public domain) over the mixed arguments.
  RING_HOST_DEVICE std::uint32_t mix(std::int32_t head, std::int32_t q, std::int32_t k) const {
    std::uint64_t x = seed + kSeedOfHead * (static_cast<std::uint64_t>(head) + 1);
    x ^= static_cast<std::uint64_t>(static_cast<std::uint32_t>(q)) << 32 | static_cast<std::uint32_t>(k);
    x = (x ^ x >> 33) * 0xff51afd7ed558ccdu;
    x = (x ^ x >> 33) * 0xc4ceb9fe1a85ec53u;
    return static_cast<std::uint32_t>(x >> 32 ^ x);
  }
};

// Returns the threshold with which a random rule keeps this share of blocks, in [0, 1].
constexpr std::uint32_t random_threshold(double density) {
  return density >= 1 ? ~0u : static_cast<std::uint32_t>(density * 4294967296.0);
}

// The rules of all KV heads of a layer. Immutable: if the pattern changes during training, with_rules() makes a new
// object, and CUDA graphs captured with the old one must be captured again.
class BlockPattern {
 public:
  // KV head h follows rules[of_head[h % of_head.size()]], or rules[0] if of_head is empty. bits: the matrices of all
  // drawn rules. Throws Error if the rules are invalid.
  BlockPattern(std::int32_t block, std::vector<BlockRule> rules, std::vector<std::int32_t> of_head = {},
               std::vector<std::uint32_t> bits = {}, std::uint64_t generation = 0);
  // Returns the next generation: the same heads with new rules.
  BlockPattern with_rules(std::vector<BlockRule> rules, std::vector<std::uint32_t> bits = {}) const;
  // Returns a copy that counts as the generation after `before`; the two patterns need not be related.
  BlockPattern as_successor_of(const BlockPattern& before) const;
  // Returns the pattern of KV heads [first, first + count), renumbered from 0, for a shard of the heads.
  BlockPattern of_heads(std::int32_t first, std::int32_t count) const;

  std::int32_t block() const { return block_; }
  std::int32_t rule_index(std::int32_t kv_head) const;
  const BlockRule& rule(std::int32_t kv_head) const { return rules_[static_cast<std::size_t>(rule_index(kv_head))]; }
  bool keeps(std::int32_t kv_head, std::int32_t q, std::int32_t k) const { return rule(kv_head).keeps(kv_head, q, k); }
  const std::vector<std::uint32_t>& bits() const { return *bits_; }
  bool selects() const;  // true if some head follows a content rule, so that calls need a selection (selection.h)

  // A hash of everything that the kept blocks depend on, the same in every process. Caches of block lists are keyed by
  // version(), measured choices of kernels by first_version(): the version of the first generation of these heads.
  std::uint64_t version() const { return version_; }
  std::uint64_t first_version() const { return first_ ? first_->version_ : version_; }
  std::uint64_t generation() const { return generation_; }  // number of changes since the first pattern

  // Throws Error, naming `op`, if a drawn rule has fewer blocks than a row of `length` tokens.
  void check_covers(std::int64_t length, const char* op) const;

 private:
  std::int32_t block_;
  std::vector<BlockRule> rules_;
  std::vector<std::int32_t> of_head_;
  std::shared_ptr<const std::vector<std::uint32_t>> bits_;  // shared by copies: their rules point into it
  std::uint64_t version_, generation_;
  std::shared_ptr<const BlockPattern> first_;  // the first generation; null if this is the first
};

// Block lists, which GPU kernels walk. The owner's rows (the queries or the keys, whichever are stationary) form tiles
// of 128: tile i starts at position 128 i. Each KV head and tile has a list of entries, one per block of 64 columns
// that the tile keeps, in ascending order. Bits of an entry:
//   [31:4] column block | [3:2] coverage of rows 64-127 | [1:0] coverage of rows 0-63
// If the 64 rows of a half start beyond the sequence's end, their coverage is `none`. Blocks that extend beyond the end
// are not marked: kernels must mask rows and columns beyond the end.
constexpr std::int32_t kListRows = 128, kListColumns = 64;
enum class BlockCoverage : std::uint8_t { none = 0, partly = 1, wholly = 2 };  // partly: contains the causal diagonal
RING_HOST_DEVICE constexpr std::int32_t list_entry(std::int32_t column_block, BlockCoverage first,
                                                   BlockCoverage second) {
  return column_block * 16 + static_cast<std::int32_t>(second) * 4 + static_cast<std::int32_t>(first);
}
// Returns the first column of an entry's block.
RING_HOST_DEVICE constexpr std::int32_t list_column(std::int32_t entry) { return (entry >> 4) * kListColumns; }
// Returns an entry's coverage of rows 0-63 (half 0) or rows 64-127 (half 1).
RING_HOST_DEVICE constexpr BlockCoverage list_coverage(std::int32_t entry, int half) {
  return static_cast<BlockCoverage>(entry >> (2 * half) & 3);
}

// Returns the causal coverage of the 64 x 64 block whose rows start at 64 * row on the owner's side and whose columns
// start at 64 * column.
RING_HOST_DEVICE constexpr BlockCoverage coverage_of(Stationary owner, std::int32_t row, std::int32_t column,
                                                     bool causal) {
  if (!causal) return BlockCoverage::wholly;
  if (row == column) return BlockCoverage::partly;
  return (column < row) == (owner == Stationary::q) ? BlockCoverage::wholly : BlockCoverage::none;
}

// Reference block lists, which lists built on devices must equal. The list of KV head h and tile t, with i = h * tiles
// + t, has entries[begins[i]] to entries[begins[i + 1] - 1].
struct BlockLists {
  std::int32_t tiles = 0;  // tiles per head
  std::vector<std::int32_t> begins, entries;
};
BlockLists lists_of(const BlockPattern&, Stationary, std::int64_t kv_heads, std::int64_t length, bool causal);

}  // namespace ring
