#pragma once
// What a pattern costs: pairs that are computed, tiles that the GPU kernels touch, and the time that follows from them.

#include <cstdint>
#include <string>
#include <vector>

#include "kernels/attention/pattern.h"

namespace ring {

// The forward on tensor cores: a thread block owns 128 queries of one head and streams tiles of 64 keys past them.
constexpr std::int32_t kTileQueries = 128, kTileKeys = 64;

// Part of the forward's work: a branch of several, the heads of a block rule, or all there is.
struct CostPart {
  std::string name;  // empty: all
  double tiles = 0, row_blocks = 0;
  bool operator==(const CostPart&) const = default;
};

// The mean of all heads, for one causal sequence.
struct PatternCost {
  double pairs = 0;     // each as often as it counts
  double repeated = 0;  // pairs that count more than once
  std::vector<CostPart> parts;
  bool operator==(const PatternCost&) const = default;
};
PatternCost cost_of(const Pattern&, std::int64_t kv_heads, std::int64_t length);

// Pairs of dense causal attention.
double causal_pairs(std::int64_t length);

// Time of the forward on one H200, in microseconds of a multiprocessor: a tile of 128 queries and 64 keys of a head of
// 128 (others, padded to 64, 128 or 256, in proportion), and a block of queries beside its tiles: reading them, writing
// results. Fitted to the rates of own_sm90 in docs/measured/attention.md, which they give within 2 %.
constexpr double kTileMicroseconds = 0.93, kRowBlockMicroseconds = 4.2;

double predicted_microseconds(const CostPart&, std::int64_t head_dim);
double predicted_microseconds(const PatternCost&, std::int64_t head_dim);  // of one head

// The part that takes longest, with its share: "2048/1: 61 %" (segment, rate); "tiles: 92 %" where there is one
// part.
std::string largest_cost(const PatternCost&, std::int64_t head_dim);

}  // namespace ring
