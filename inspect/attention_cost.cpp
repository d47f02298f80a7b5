#include "inspect/attention_cost.h"

#include <algorithm>
#include <cmath>
#include <map>

#include "core/check.h"
#include "inspect/attention_samples.h"
#include "kernels/attention/blocks.h"
#include "kernels/attention/head_segment.h"
#include "kernels/attention/pairs.h"

namespace ring {
namespace {

std::int64_t divided_up(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

// Returns the number of key tiles that the kernels visit: tiles from the first column to the gap (columns that no row
// sees), and tiles after the gap.
double tiles_of(const TileBounds& r) {
  const auto steps = [](std::int64_t from, std::int64_t to) {
    return std::max<std::int64_t>(0, divided_up(to - from, kTileKeys));
  };
  if (r.gap >= r.gap_end || r.gap_end <= r.first || r.gap >= r.end) return static_cast<double>(steps(r.first, r.end));
  const std::int64_t before = steps(r.first, r.gap);
  const std::int64_t next = std::max<std::int64_t>(r.first + before * kTileKeys, r.gap_end);
  return static_cast<double>(before + steps(next, r.end));
}

// Returns segment, rate and window, e.g. "2048/4" or "all/3 window 16".
std::string name_of(const BranchPass& pass) {
  const std::string segment = pass.segment == kNoSegment ? "all" : str(pass.segment);
  return str(segment, "/", pass.rate, pass.window > 0 ? str(" window ", pass.window) : "");
}

CostPart part_of(const BranchPass& pass, const Pattern& pattern, const std::vector<Span>& whole,
                 const std::vector<Span>& keys, std::int64_t kv_heads) {
  CostPart part;
  if (pattern.branches.size() > 1) part.name = name_of(pass);
  const auto offsets = static_cast<std::int32_t>(std::min<std::int64_t>(kv_heads, pass.rate));
  for (const SegmentPair& piece : segment_pairs_of(pass, pattern, whole, keys))
    for (std::int32_t h = 0; h < offsets; ++h) {
      // Heads with the same offset see the same pairs, so one head is computed and counted for all of them.
      const std::int64_t same = divided_up(kv_heads - h, pass.rate);
      const auto heads = static_cast<double>(same);
      const HeadSegment s(pass, piece, pass.offset(h));
      for (std::int32_t row = s.q_first; row < s.q_end; row += kTileQueries) {
        part.row_blocks += heads;
        part.tiles += heads * tiles_of(s.bounds<Stationary::q>(row, std::min(row + kTileQueries, s.q_end)));
      }
    }
  part.row_blocks /= static_cast<double>(kv_heads);
  part.tiles /= static_cast<double>(kv_heads);
  return part;
}

// Returns the number of one head's pairs that two or more branches keep; each counts once. Uses inclusion-exclusion
// over the subsets of branches.
double repeated_samples(const std::vector<Branch>& branches, std::int64_t place, std::int64_t length) {
  double repeated = 0;
  for_subsets(branches, [&](unsigned subset, int size) {
    const double weight = size < 2 ? 0 : size % 2 ? 1 - size : size - 1;
    if (weight == 0) return;
    double pairs = 0;
    for_common_samples(branches, subset, place, length, [&](auto, auto, auto count) { pairs += causal_pairs(count); });
    repeated += weight * pairs;
  });
  return repeated;
}

// Same as repeated_samples(), but for any branches, also with windows. Counts query by query.
double repeated_keys(const Pattern& p, std::int32_t kv_head, std::int64_t length) {
  const SeenKeys seen(p);
  std::vector<KeyRun> runs;
  double repeated = 0;
  for (std::int32_t t = 0; t < length; ++t) {
    runs.clear();
    seen.add(kv_head, t, static_cast<std::int32_t>(length), runs);
    for_key_ranges(runs, [&](std::int32_t first, std::int32_t end, int times) {
      if (times > 1) repeated += end - first;
    });
  }
  return repeated;
}

// Returns the number of pairs that two or more branches keep, as the mean over the KV heads.
double repeated_pairs(const Pattern& p, std::int64_t kv_heads, std::int64_t length) {
  // For each set of offsets: one head with these offsets, and the number of such heads.
  std::map<std::vector<std::int64_t>, std::pair<std::int64_t, double>> heads;
  for (std::int64_t h = 0; h < kv_heads; ++h) {
    std::vector<std::int64_t> offsets;
    for (const Branch& b : p.branches) offsets.push_back((h + p.shift) % b.rate);
    auto& [head, count] = heads[offsets];
    head = h, count += 1;
  }
  double repeated = 0;
  for (const auto& [offsets, same] : heads)
    repeated += same.second * (p.has_windows() ? repeated_keys(p, static_cast<std::int32_t>(same.first), length)
                                               : repeated_samples(p.branches, same.first + p.shift, length));
  return repeated / static_cast<double>(kv_heads);
}

struct BlockCounts {
  double pairs = 0, tiles = 0;
};

// Counts the pairs of one head and the entries of its block lists. Tests each block once.
BlockCounts count_blocks(const BlockPattern& blocks, std::int32_t kv_head, std::int64_t length) {
  const BlockRule rule = blocks.rule(kv_head);
  const std::int32_t block = blocks.block(), rows = kTileQueries / block;
  const auto count = static_cast<std::int32_t>((length + block - 1) / block);
  BlockCounts sum;
  // before: number of blocks that row q keeps before the diagonal.
  const auto add_row = [&](std::int32_t q, std::int64_t before) {
    const std::int64_t tokens = std::min<std::int64_t>(block, length - std::int64_t{q} * block);
    sum.pairs += static_cast<double>(tokens * before * block) + causal_pairs(tokens);
  };
  for (std::int32_t first = 0; first < count; first += rows) {
    const bool second = rows == 2 && first + 1 < count;
    std::int64_t in_first = 0, in_second = 0, in_any = 0;
    for (std::int32_t k = 0; k < first; ++k) {
      const bool a = rule.keeps(kv_head, first, k), b = second && rule.keeps(kv_head, first + 1, k);
      in_first += a, in_second += b, in_any += a || b;
    }
    add_row(first, in_first);
    if (second) add_row(first + 1, in_second + rule.keeps(kv_head, first + 1, first));
    const std::int64_t diagonal = std::min<std::int64_t>(kTileQueries, length - std::int64_t{first} * block);
    const std::int64_t tiles = in_any * (block / kTileKeys) + divided_up(diagonal, kTileKeys);
    sum.tiles += static_cast<double>(tiles);
  }
  return sum;
}

// Number of block tests that take about a second. If more would be needed, only some heads of a random rule are
// counted, and their mean is used for the others.
constexpr double kMaxLooks = 3e8;

PatternCost cost_of_blocks(const BlockPattern& blocks, std::int64_t kv_heads, std::int64_t length) {
  blocks.check_covers(length, "attention");
  std::map<std::int32_t, std::vector<std::int32_t>> heads;  // heads by block rule
  for (std::int32_t h = 0; h < kv_heads; ++h) heads[blocks.rule_index(h)].push_back(h);
  const double side = static_cast<double>(length) / blocks.block(), looks = side * side / 2;
  const double max = std::max(1.0, kMaxLooks / looks / static_cast<double>(heads.size()));
  const std::int64_t row_blocks = divided_up(length, kTileQueries);
  PatternCost cost;
  for (const auto& [rule, same] : heads) {
    const auto share = static_cast<double>(same.size()) / static_cast<double>(kv_heads);
    std::size_t counted = 1;
    if (blocks.rule(same[0]).kind == BlockRuleKind::random)
      counted = static_cast<std::size_t>(std::min(max, static_cast<double>(same.size())));
    BlockCounts sum;
    for (std::size_t i = 0; i < counted; ++i) {
      const BlockCounts one = count_blocks(blocks, same[i], length);
      sum.pairs += one.pairs, sum.tiles += one.tiles;
    }
    cost.pairs += share * sum.pairs / static_cast<double>(counted);
    cost.parts.push_back({heads.size() > 1 ? str("heads as ", same[0]) : "",
                          share * sum.tiles / static_cast<double>(counted), share * static_cast<double>(row_blocks)});
  }
  return cost;
}

double microseconds_in_tiles(const CostPart& p, std::int64_t head_dim) {
  const std::int64_t padded = head_dim <= 64 ? 64 : head_dim <= 128 ? 128 : std::max<std::int64_t>(256, head_dim);
  return p.tiles * kTileMicroseconds * static_cast<double>(padded) / 128;
}

// Adds one kernel call per pool size to the kernel call for the tokens.
void add_pools(PatternCost& cost, const Pattern& pattern, std::int64_t kv_heads, std::int64_t length) {
  const std::vector<Span> whole = {{0, static_cast<std::int32_t>(length), 0, 0}};
  if (cost.parts.size() == 1) cost.parts[0].name = "tokens";
  for (const std::int32_t size : pattern.pools) {
    const Pattern keys{.pool = size};
    const std::vector<Span> pools = pool_spans(whole, size);
    cost.pairs += kept_pairs(keys, whole, pools, kv_heads);
    cost.parts.push_back(part_of(passes_of(keys)[0], keys, whole, pools, kv_heads));
    cost.parts.back().name = str("pools of ", size);
  }
}

}  // namespace

PatternCost cost_of(const Pattern& pattern, std::int64_t kv_heads, std::int64_t length) {
  RING_CHECK(pattern.causal, "attention costs are known only for causal attention");
  check(pattern, "attention");
  if (!pattern.pools.empty()) {
    Pattern tokens = pattern;
    tokens.pools.clear();
    PatternCost cost = cost_of(tokens, kv_heads, length);
    add_pools(cost, pattern, kv_heads, length);
    return cost;
  }
  if (pattern.blocks) return cost_of_blocks(*pattern.blocks, kv_heads, length);
  const std::vector<Span> whole = {{0, static_cast<std::int32_t>(length), 0, 0}};
  PatternCost cost;
  cost.pairs = kept_pairs(pattern, whole, whole, kv_heads);
  if (pattern.branches.size() > 1 && !pattern.dedup) cost.repeated = repeated_pairs(pattern, kv_heads, length);
  for (const BranchPass& pass : passes_of(pattern))
    cost.parts.push_back(part_of(pass, pattern, whole, whole, kv_heads));
  return cost;
}

double causal_pairs(std::int64_t length) { return static_cast<double>(length) * (static_cast<double>(length) + 1) / 2; }

double predicted_microseconds(const CostPart& p, std::int64_t head_dim) {
  return microseconds_in_tiles(p, head_dim) + p.row_blocks * kRowBlockMicroseconds;
}

double predicted_microseconds(const PatternCost& cost, std::int64_t head_dim) {
  double sum = 0;
  for (const CostPart& p : cost.parts) sum += predicted_microseconds(p, head_dim);
  return sum;
}

std::string largest_cost_text(const PatternCost& cost, std::int64_t head_dim) {
  std::string name;
  double largest = 0;
  for (const CostPart& p : cost.parts)
    if (const double time = predicted_microseconds(p, head_dim); time > largest) largest = time, name = p.name;
  if (cost.parts.size() == 1) {
    const double tiles = microseconds_in_tiles(cost.parts[0], head_dim);
    name = 2 * tiles >= largest ? "tiles" : "row blocks";
    largest = std::max(tiles, largest - tiles);
  }
  return str(name, ": ", std::lround(100 * largest / predicted_microseconds(cost, head_dim)), " %");
}

}  // namespace ring
