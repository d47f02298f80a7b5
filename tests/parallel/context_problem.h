#pragma once
// Micro-batches that are sharded among ranks, for tests of context parallelism.

#include <ostream>

#include "kernels/attention/blocks.h"
#include "parallel/context/layout.h"
#include "tests/cases/attention_oracle.h"

namespace ring::test {

// Rows of `length` tokens, the documents in them, and the pattern.
struct ContextCase {
  std::string name;
  Pattern pattern;
  std::int64_t length = 0, rows = 1;
  std::vector<Span> documents;
  std::int64_t changed = -1;  // token whose input differs from that of the same case without it; -1: none

  std::int64_t tokens() const { return length * rows; }
};
inline void PrintTo(const ContextCase& c, std::ostream* out) { *out << c.name; }

// Returns documents of these lengths, one after the other, in every row. A negative length is a gap. The rest of a row
// is one document.
inline std::vector<Span> documents_of(std::int64_t length, std::int64_t rows,
                                      const std::vector<std::int32_t>& lengths) {
  std::vector<Span> out;
  const auto size = static_cast<std::int32_t>(length);
  for (std::int32_t row = 0; row < rows; ++row) {
    std::int32_t at = 0;
    const auto add = [&](std::int32_t n) {
      if (n > 0) out.push_back({row * size + at, n, at, at});
      at += n < 0 ? -n : n;
    };
    for (const std::int32_t n : lengths) add(n);
    add(size - at);
  }
  return out;
}

inline std::vector<std::pair<std::string, Pattern>> context_patterns() {
  const auto rule = [](BlockRuleKind kind, std::int32_t local, std::int32_t first, std::int32_t every) {
    return BlockRule{.kind = kind, .local = local, .first = first, .every = every};
  };
  BlockRule random = rule(BlockRuleKind::random, 1, 0, 0);
  random.threshold = random_threshold(0.3), random.seed = 5;
  return {{"dense", dense()},
          {"full", dense(false)},
          {"window", window(37, 3)},
          {"window_full", window(20, 0, false)},
          {"dilated", dilated({{16, 1}, {64, 2}, {256, 4}}, false, 1)},
          {"dilated_ragged", dilated({{24, 1}, {90, 4}, {333, 7}})},
          {"dilated_dedup", dilated({{16, 1}, {64, 2}, {256, 4}, {1024, 8}}, true, 3)},
          {"dilated_full", dilated({{32, 1}, {128, 4}}, false, 2, false)},
          {"scales", scales()},
          {"chunks", chunks()},
          {"scales_full", scales(false)},
          {"local_global", block_sparse(64, {rule(BlockRuleKind::local_global, 2, 1, 3)})},
          {"hierarchical", block_sparse(64, {rule(BlockRuleKind::hierarchical, 1, 0, 0), random})}};
}

// Returns every pattern over plain rows and over packed documents with gaps; lengths do not divide evenly.
inline std::vector<ContextCase> context_cases() {
  std::vector<ContextCase> out;
  for (const auto& [name, pattern] : context_patterns()) {
    out.push_back({name + "_plain", pattern, 387, 2, documents_of(387, 2, {})});
    out.push_back({name + "_packed", pattern, 403, 2, documents_of(403, 2, {70, 1, -9, 150, 3, -40, 90})});
  }
  return out;
}

}  // namespace ring::test
