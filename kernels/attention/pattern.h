#pragma once
// Which pairs of a query and a key attention counts, and how often: all that kernels, caches, context parallelism,
// costs and pictures know of it. A kind of attention (model/attention/kinds.h) makes a pattern of its settings.

#include <cstdint>
#include <limits>
#include <memory>
#include <vector>

namespace ring {

class BlockPattern;  // kernels/attention/blocks.h

constexpr std::int32_t kNoSegment = std::numeric_limits<std::int32_t>::max();

// Every rate-th position of each segment of so many is sampled (LongNet's w and r: Ding et al. 2023, section 2).
struct Branch {
  std::int32_t segment = kNoSegment, rate = 1;
  std::int32_t window = 0;  // newest samples of the segment that are seen, the query among them; 0: all
  bool operator==(const Branch&) const = default;
};

// Positions t (query) and u (key) count from the start of the document, `from_row` from the start of the packed row.
// t and u belong to one document, with `causal` u <= t, and a pair counts once for each branch that has it:
//   * t and u lie in one segment floor(t / segment) and are both sampled there,
//     (t mod segment) mod rate = (KV head + shift) mod rate;
//   * where the branch has a window: |t - u| < window rate, or u < sinks.
// With blocks there is one plain branch, positions count from the block in which the document starts, and (t / block,
// u / block) is a block of `blocks` for this KV head.
// With pools, t has more keys beside these, which no kernel knows (pooled_attention.h): of each size p, for each j the
// mean of the keys of positions [p j, p (j + 1)) of its document, where p (j + 1) <= t.
struct Pattern {
  bool causal = true;
  std::vector<Branch> branches = {Branch{}};  // the first one has rate 1, so that each query sees itself
  std::int32_t sinks = 0;
  bool dedup = false;  // a pair counts once; segments and rates divide the next ones, and each rate its segment
  bool from_row = false;
  std::int32_t shift = 0;
  std::shared_ptr<const BlockPattern> blocks;
  std::vector<std::int32_t> pools;  // sizes, in tokens
  // In a call over pools alone: position u of the keys is pool u of so many tokens; 0: it is a token.
  std::int32_t pool = 0;

  // What a query sees is one interval, and sinks: dense attention or a window.
  bool is_interval() const;
  bool is_dense() const { return is_interval() && branches[0].window == 0; }
  bool has_windows() const;
  bool has_samples() const;  // heads differ by `shift`
  bool selects() const;      // which blocks it keeps, a selection says (selection.h)
  // Where positions count from, for a document that starts here.
  std::int64_t origin(std::int32_t document) const;
};

// Whether they keep the same pairs. A shift counts up to the rates.
bool same_pairs(const Pattern&, const Pattern&);

// Neighbouring KV heads of a layer.
struct KvHeads {
  std::int64_t first = 0, count = 0;
};
// The pattern as they see it, numbered from 0.
Pattern of_heads(Pattern, KvHeads);

// Error, naming `op`: the numbers make no pattern.
void check(const Pattern&, const char* op);

// Neighbouring rows of a tensor that belong to one document.
struct Span {
  std::int32_t first = 0, count = 0;  // rows
  std::int32_t position = 0;          // of row `first`, from the start of the packed row
  std::int32_t document = 0;          // where the document starts, likewise
  bool operator==(const Span&) const = default;
};

// Document b holds rows offsets[b] .. offsets[b+1] and lies in the packed row that starts at the last of `rows` that is
// not behind it; no rows: each document is a row of its own.
std::vector<Span> spans_of(const std::vector<std::int32_t>& offsets, const std::vector<std::int32_t>& rows = {});

std::vector<Span> sorted_by_row(std::vector<Span> spans);  // by row; the empty ones are left out

}  // namespace ring
