#pragma once
// Which pairs of a query and a key attention counts, and how often.

#include <cstdint>
#include <memory>
#include <vector>

namespace ring {

class BlockPattern;  // kernels/attention/blocks.h

enum class AttentionKind : std::uint8_t { dense, window, dilated, block_sparse };

// LongNet's w and r (Ding et al. 2023, section 2): of each segment of w positions every r-th is sampled.
struct Branch {
  std::int32_t segment = 0, rate = 1;
  bool operator==(const Branch&) const = default;
};

// Positions t (query) and u (key) count from the start of the packed row, for windows from the start of the document.
// Every kind: t and u belong to one document, and with `causal` u <= t.
//   dense         all.
//   window        t - window < u (and, not causal, u < t + window), or u < sinks.
//   dilated       in branch i: t and u lie in one segment floor(t / segment) and are both sampled there,
//                 (t mod segment) mod rate = s = (KV head + shift) mod rate. A pair counts once for each branch that
//                 has it; with `dedup` once. branches[0].rate = 1, rate <= segment.
//   block_sparse  (t / block, u / block) is a block of `blocks` for this KV head, both counted from the block in which
//                 the document starts.
struct Pattern {
  AttentionKind kind = AttentionKind::dense;
  bool causal = true;
  std::int32_t window = 0, sinks = 0;
  std::vector<Branch> branches;
  bool dedup = false;  // segments and rates must then divide the next ones, and each rate its segment
  std::int32_t shift = 0;
  std::shared_ptr<const BlockPattern> blocks;

  bool is_dense() const { return kind == AttentionKind::dense; }
};

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
