#pragma once
// A pattern says which query-key pairs attention counts, and how often. A kind of attention (model/attention/kinds.h)
// converts its settings to a pattern, and kernels, caches, context parallelism, costs and pictures depend on the
// pattern alone.

#include <cstdint>
#include <limits>
#include <memory>
#include <vector>

namespace ring {

class BlockPattern;  // kernels/attention/blocks.h

constexpr std::int32_t kNoSegment = std::numeric_limits<std::int32_t>::max();  // one segment covers the whole document

// A dilated branch: samples every rate-th position of each segment of `segment` positions (LongNet's r and w: Ding et
// al. 2023, section 2).
struct Branch {
  std::int32_t segment = kNoSegment, rate = 1;
  std::int32_t window = 0;  // samples that a query sees, itself included; 0 means the whole segment
  bool operator==(const Branch&) const = default;
};

// Let t and u be the positions of a query and a key, counted from the start of the document, or of the packed row if
// `from_row`. A pair must be within one document and, if `causal`, have u <= t. It counts once for each branch with
//   * t and u in the same segment, floor(t / segment) = floor(u / segment), and both sampled:
//     (t mod segment) mod rate = (u mod segment) mod rate = (KV head + shift) mod rate;
//   * |t - u| < window * rate or u < sinks, if the branch has a window.
// With `blocks` there is one plain branch; positions count from the start of the block in which the document starts,
// and `blocks` must keep block (t / block, u / block) for this KV head.
// With `pools`, t also sees pools of its document as keys, which pooled_attention.h handles and kernels do not: for
// each size p, the mean of the keys at positions [p j, p (j + 1)) for each j with p (j + 1) <= t.
struct Pattern {
  bool causal = true;
  std::vector<Branch> branches = {Branch{}};  // the first one has rate 1, so that each query sees itself
  std::int32_t sinks = 0;
  // If true, a pair counts once even if several branches contain it. Requires that each segment and each rate divides
  // that of the next branch, and that each rate divides its segment.
  bool dedup = false;
  bool from_row = false;
  std::int32_t shift = 0;
  std::shared_ptr<const BlockPattern> blocks;
  std::vector<std::int32_t> pools;  // pool sizes in tokens
  // If the keys of a call are pools: tokens per pool, and position u of the keys is pool u. 0 if keys are tokens.
  std::int32_t pool = 0;

  // True if each query sees one interval of keys, plus sinks: dense attention or a sliding window.
  bool is_interval() const;
  bool is_dense() const { return is_interval() && branches[0].window == 0; }
  bool has_windows() const;
  bool has_samples() const;  // true if some branch has a rate above 1, so that heads sample different positions
  bool selects() const;      // true if calls need a selection (selection.h), which says which blocks are kept
  // Returns the position in the packed row that positions count from, for a document that starts at `document`.
  std::int64_t origin(std::int32_t document) const;
};

// Returns true if both patterns keep the same pairs. Shifts are compared modulo the rates.
bool same_pairs(const Pattern&, const Pattern&);

// Consecutive KV heads of a layer.
struct KvHeads {
  std::int64_t first = 0, count = 0;
};
// Returns the pattern for these heads alone, renumbered from 0.
Pattern of_heads(Pattern, KvHeads);

// Throws Error, naming `op`, if the settings contradict each other or are out of range.
void check(const Pattern&, const char* op);

// Consecutive rows of a tensor that belong to one document. Positions count from the start of the packed row.
struct Span {
  std::int32_t first = 0, count = 0;  // rows [first, first + count)
  std::int32_t position = 0;          // position of row `first`
  std::int32_t document = 0;          // position at which the document starts
  bool operator==(const Span&) const = default;
};

// Returns one span per document. Document b has rows [offsets[b], offsets[b+1]) and belongs to the packed row that
// starts at the largest element of `rows` (ascending) at or before offsets[b]. If `rows` is empty, each document is a
// packed row of its own.
std::vector<Span> spans_of(const std::vector<std::int32_t>& offsets, const std::vector<std::int32_t>& rows = {});

std::vector<Span> sorted_by_row(std::vector<Span> spans);  // sorts spans and removes empty ones

// Returns how many pools of the document are seen by a query. No query sees a pool that includes the last token.
std::int32_t count_pools(const Span& document, std::int32_t pool);
// Returns the key spans of the pools of whole documents, for a call with Pattern::pool: one row per pool, document
// after document. Throws Error if a span is not a whole document.
std::vector<Span> pool_spans(const std::vector<Span>& documents, std::int32_t pool);

}  // namespace ring
