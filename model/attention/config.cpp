#include "model/attention/config.h"

#include <limits>

#include "core/check.h"
#include "core/fields.h"
#include "kernels/attention/blocks.h"

namespace ring {
namespace {

constexpr std::int64_t kMostTokens = 1 << 30, kMostBlocks = 1 << 24;
constexpr std::size_t kMostBranches = 64;

const Choices<AttentionKind>& kinds() {
  static const auto names = choices<AttentionKind>({{"dense", AttentionKind::dense},
                                                    {"window", AttentionKind::window},
                                                    {"dilated", AttentionKind::dilated},
                                                    {"block_sparse", AttentionKind::block_sparse}});
  return names;
}

const Choices<BlockChoice>& block_patterns() {
  static const auto names = choices<BlockChoice>({{"local_global", BlockChoice::local_global},
                                                  {"strided", BlockChoice::strided},
                                                  {"hierarchical", BlockChoice::hierarchical},
                                                  {"random", BlockChoice::random},
                                                  {"file", BlockChoice::file}});
  return names;
}

template <class E>
std::string name_of(const Choices<E>& names, E value) {
  for (const auto& [name, e] : names.names)
    if (e == value) return name;
  return "";
}

std::string list_text(const std::vector<std::int64_t>& list) {
  std::string text;
  for (std::int64_t x : list) text += str(text.empty() ? "" : ", ", x);
  return "[" + text + "]";
}

// Says of keys that were given but mean nothing where they stand.
struct Foreign {
  std::vector<std::string>& errors;
  std::string here;  // "kind: dense"
  void operator()(bool given, const std::string& key, const std::string& value, const char* home) const {
    if (given)
      errors.push_back(str(key, ": ", value, " belongs to ", home, ", but this is ", here, ": leave ", key, " out"));
  }
};

void validate_branches(const AttentionConfig& c, std::vector<std::string>& errors) {
  if (c.segments.empty() || c.segments.size() != c.rates.size()) {
    errors.push_back(str("segments: ", list_text(c.segments), " and rates: ", list_text(c.rates),
                         " must have one entry per branch, such as segments: [256, 1024] and rates: [1, 4]"));
    return;
  }
  if (c.rates[0] != 1)
    errors.push_back(str("rates: the first is ", c.rates[0], ", but must be 1, so that every token sees itself"));
  for (std::size_t i = 0; i < c.rates.size(); ++i)
    if (c.rates[i] > c.segments[i])
      errors.push_back(str("rates: ", c.rates[i], " is above its segment of ", c.segments[i],
                           ", of which nothing would be left: lower the rate or lengthen the segment"));
}

void validate_dedup(const AttentionConfig& c, std::vector<std::string>& errors) {
  for (std::size_t i = 0; i < c.rates.size() && i < c.segments.size(); ++i) {
    if (c.segments[i] % c.rates[i])
      errors.push_back(str("dedup: needs rates that divide their segments, but ", c.rates[i], " does not divide ",
                           c.segments[i], ": change one of them or set dedup: false"));
    if (i + 1 >= c.rates.size() || i + 1 >= c.segments.size()) continue;
    if (c.segments[i + 1] % c.segments[i] || c.rates[i + 1] % c.rates[i])
      errors.push_back(str("dedup: needs branches that nest, but segment ", c.segments[i], " and rate ", c.rates[i],
                           " do not both divide the next ones, ", c.segments[i + 1], " and ", c.rates[i + 1],
                           ": change them or set dedup: false"));
  }
}

void validate_blocks(const AttentionConfig& c, std::vector<std::string>& errors) {
  if (c.block != 0 && c.block != 64 && c.block != 128)
    errors.push_back(str("block: ", c.block, " tokens, but blocks have 64 or 128"));
  if (c.rules.empty())
    errors.push_back(
        "rules: kind: block_sparse needs one at least, such as rules: [{pattern: local_global, local: 4}]");
  for (std::int64_t rule : c.heads)
    if (rule >= static_cast<std::int64_t>(c.rules.size()))
      errors.push_back(str("heads: there is no rule ", rule, ", but ", c.rules.size(), ", counted from 0"));
}

}  // namespace

void BlockRuleConfig::fields(Fields& f) {
  f("pattern", pattern,
    "which blocks of keys a block of queries sees, d blocks further on; itself always. local_global: d < local, the "
    "first ones, and multiples of every; strided: d < local or a multiple of every; hierarchical: local ones, then "
    "level by level twice as far and half as dense; random: d < local and a share of all; file: as drawn in a file",
    block_patterns());
  f("local", local, "nearest blocks, which are all seen, in blocks; not of file", in_range(1, kMostBlocks));
  f("first", first, "local_global: blocks at the start that all see, in blocks", in_range(0, kMostBlocks));
  f("every", every,
    "local_global: also each block whose number is a multiple of it; strided: distance of the columns; in blocks, "
    "0 = none",
    in_range(0, kMostBlocks));
  f("density", density, "random: share of the blocks, above 0", in_range(0, 1));
  f("seed", seed, "random: another seed draws other blocks", in_range(0, std::numeric_limits<std::int64_t>::max()));
  f("file", file, "file: path of the text file with the blocks", rank_local());
}

void BlockRuleConfig::validate(std::vector<std::string>& errors) const {
  const Foreign foreign{errors, "pattern: " + name_of(block_patterns(), pattern)};
  const auto is = [&](BlockChoice p) { return pattern == p; };
  const bool has_every = is(BlockChoice::local_global) || is(BlockChoice::strided);
  foreign(local != 1 && is(BlockChoice::file), "local", str(local), "every pattern but file");
  foreign(first != 0 && !is(BlockChoice::local_global), "first", str(first), "pattern: local_global");
  foreign(every != 0 && !has_every, "every", str(every), "pattern: local_global and strided");
  foreign(density != 0 && !is(BlockChoice::random), "density", str(density), "pattern: random");
  foreign(seed != 0 && !is(BlockChoice::random), "seed", str(seed), "pattern: random");
  foreign(!file.empty() && !is(BlockChoice::file), "file", file, "pattern: file");
  if (is(BlockChoice::strided) && every == 0)
    errors.push_back("every: 0, but pattern: strided needs the distance of its columns: set it to 1 or more");
  if (is(BlockChoice::random) && random_threshold(density) == 0)
    errors.push_back(str("density: ", density, ", but pattern: random needs the share of blocks to keep, such as 0.1"));
  if (is(BlockChoice::file) && file.empty())
    errors.push_back("file: empty, but pattern: file needs the path of a text file with the blocks");
}

void AttentionConfig::fields(Fields& f) {
  f("kind", kind, "which keys a token attends to: all before it, a window, dilated segments (LongNet), or blocks",
    kinds());
  f("window", window, "window: newest tokens that are seen, the token itself among them", in_range(0, kMostTokens));
  f("sinks", sinks, "window: first tokens of the document that stay in sight", in_range(0, kMostTokens));
  f("segments", segments, "dilated: segment length of each branch, in tokens; it may exceed the context",
    in_range(1, kMostTokens), at_most_items(kMostBranches));
  f("rates", rates, "dilated: of a branch with rate r every r-th token of a segment takes part; the first rate is 1",
    in_range(1, kMostTokens), at_most_items(kMostBranches));
  f("dedup", dedup, "dilated: a pair that several branches keep counts once; the branches must nest");
  f("block", block, "block_sparse: tokens of a block, 64 or 128; 0 = 128", in_range(0, 128));
  f("rules", rules, "block_sparse: patterns to choose from", at_most_items(64));
  f("heads", heads, "block_sparse: rule of each KV head, counted from 0, starting over where the list ends; [] = all 0",
    in_range(0, 63), at_most_items(1 << 16));
}

void AttentionConfig::validate(std::vector<std::string>& errors) const {
  const Foreign foreign{errors, "kind: " + name_of(kinds(), kind)};
  const auto is = [&](AttentionKind k) { return kind == k; };
  foreign(window != 0 && !is(AttentionKind::window), "window", str(window), "kind: window");
  foreign(sinks != 0 && !is(AttentionKind::window), "sinks", str(sinks), "kind: window");
  foreign(!segments.empty() && !is(AttentionKind::dilated), "segments", list_text(segments), "kind: dilated");
  foreign(!rates.empty() && !is(AttentionKind::dilated), "rates", list_text(rates), "kind: dilated");
  foreign(dedup && !is(AttentionKind::dilated), "dedup", "true", "kind: dilated");
  foreign(block != 0 && !is(AttentionKind::block_sparse), "block", str(block), "kind: block_sparse");
  foreign(!rules.empty() && !is(AttentionKind::block_sparse), "rules", str("a list of ", rules.size()),
          "kind: block_sparse");
  foreign(!heads.empty() && !is(AttentionKind::block_sparse), "heads", list_text(heads), "kind: block_sparse");
  if (is(AttentionKind::window) && window < 1)
    errors.push_back(str("window: ", window, ", but kind: window needs 1 token or more, such as window: 256"));
  if (is(AttentionKind::dilated)) validate_branches(*this, errors);
  if (is(AttentionKind::dilated) && dedup) validate_dedup(*this, errors);
  if (is(AttentionKind::block_sparse)) validate_blocks(*this, errors);
}

void LayerAttentionConfig::fields(Fields& f) {
  f("layers", layers, "which layers, counted from 0: numbers and ranges (0,4-7), every 4 from 3, or both", non_empty());
  f("attention", attention, "their attention, in place of model.attention");
}

}  // namespace ring
