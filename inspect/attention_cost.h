#pragma once
// The cost of a pattern: the pairs computed, the tiles that GPU kernels visit, and the time predicted from them.

#include <cstdint>
#include <string>
#include <vector>

#include "kernels/attention/pattern.h"

namespace ring {

// Tile size of the forward on tensor cores: a thread block owns 128 queries of one head and streams tiles of 64 keys.
constexpr std::int32_t kTileQueries = 128, kTileKeys = 64;

// Part of the forward's work: one of several branches, the heads with one block rule, the tokens or the pools of one
// size, or everything.
struct CostPart {
  std::string name;  // empty if this part is everything
  // Means over the heads. tiles: key tiles that the forward visits. row_blocks: blocks of 128 queries.
  double tiles = 0, row_blocks = 0;
  bool operator==(const CostPart&) const = default;
};

// Cost of one causal sequence, as the mean over the heads.
struct PatternCost {
  double pairs = 0;     // a pair that is computed several times is counted each time
  double repeated = 0;  // pairs that several branches keep, and that are therefore computed several times; 0 with dedup
  std::vector<CostPart> parts;
  bool operator==(const PatternCost&) const = default;
};
PatternCost cost_of(const Pattern&, std::int64_t kv_heads, std::int64_t length);

// Returns the number of pairs of dense causal attention.
double causal_pairs(std::int64_t length);

// Time that one multiprocessor of an H200 spends in the forward, in microseconds: per tile of 128 queries and 64 keys
// at head dimension 128 (other dimensions are padded to 64, 128 or 256 and scale in proportion), and per block of
// queries, to read the queries and write the results. Fitted to the rates of own_sm90 in docs/measured/attention.md;
// within 2 % of them.
constexpr double kTileMicroseconds = 0.93, kRowBlockMicroseconds = 4.2;

double predicted_microseconds(const CostPart&, std::int64_t head_dim);
double predicted_microseconds(const PatternCost&, std::int64_t head_dim);  // sum over all parts, for one head

// Returns the name of the part with the longest predicted time and its share of the total, e.g. "2048/1: 61 %"
// (segment/rate). If there is only one part, returns its tiles or its row blocks, the larger share of the two, e.g.
// "tiles: 92 %".
std::string largest_cost_text(const PatternCost&, std::int64_t head_dim);

}  // namespace ring
