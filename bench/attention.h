#pragma once
// Times every attention kernel of this build on operands as in training: queries, keys and values side by side in one
// buffer, in which the QKV GEMM writes them.

#include <functional>
#include <string>
#include <vector>

#include "bench/step.h"
#include "kernels/attention/attention.h"

namespace ring {

// A forward and a backward over `rows` rows of random numbers, without spans and pattern.
struct AttentionOperands {
  Attention forward;
  AttentionBackward backward;
};
AttentionOperands random_operands(std::int64_t rows, std::int64_t heads, std::int64_t kv_heads, std::int64_t dim,
                                  const ExecContext&);

struct NamedPattern {
  std::string kind;
  Pattern pattern;
};

struct AttentionGrid {
  std::int64_t heads = 16, kv_heads = 16, tokens = 16384;  // tokens: per batch, which has at least one sequence
  std::vector<std::int64_t> head_dims, lengths;
  std::vector<bool> causal;
  // AttentionGrid::causal replaces the patterns' `causal`. All heads of a block pattern must have the same rule.
  std::vector<NamedPattern> patterns = {{"dense", {}}};
  std::vector<std::string> candidates;  // kernels to time; if empty, all kernels
  double dropout = 0;                   // dropout rate of attention weights
  int rounds = 1;  // number of rounds in which all kernels of a shape are measured in turn; the median is reported
  double seconds = 0.2;    // minimum seconds of each measurement
  double rest = 0;         // idle seconds before each measurement, to let a GPU's clocks recover
  double max_seconds = 2;  // a kernel is skipped if its last rate predicts that a call takes longer
};

// Work of a call. select: computes the bits of the kept blocks from queries and keys, for patterns that select by
// content.
enum class AttentionPass : std::uint8_t { select, forward, backward };

struct AttentionTiming {
  AttentionPass pass = AttentionPass::forward;
  std::string candidate, kind;
  std::int64_t head_dim = 0, length = 0, sequences = 0;
  bool causal = true, deterministic = true;
  double seconds = 0;  // seconds per call; 0 if the kernel was skipped because a call would take `expected` seconds
  double spread = 0;   // spread over the rounds: (max - min) / median
  double flops = 0, expected = 0;  // flops: FLOPs per call; expected: seconds per call; 0 if not counted
  double kept = 1;                 // kept pairs as a share of the pairs of dense attention
  double of_dense = 0;             // time relative to the fastest dense kernel other than cuDNN's; 0 if not measured
  std::size_t extra_bytes = 0;     // peak bytes of a call beyond its operands, including new block lists of a pattern
  // Extra seconds of a call with a new block pattern, for which it must build block lists: the forward by query tile,
  // the backward by query tile and by key tile. 0 for selected blocks: each call builds their lists, so `seconds`
  // includes the time.
  double lists_seconds = 0;
};

void check_grid(const AttentionGrid&);  // throws Error if the grid is invalid

// Reports shape by shape. The forward does not depend on ctx.deterministic and is measured once; the backward is
// measured both ways. If a pattern selects blocks by content, selection is a pass of its own, and the other passes
// attend to blocks that were selected before. Throws Error if the grid is invalid.
void time_attention(const AttentionGrid&, const ExecContext&,
                    const std::function<void(const AttentionTiming&)>& report);

}  // namespace ring
