#pragma once
// Times every attention kernel of this build on operands as in training: queries, keys and values side by side in one
// buffer, as the QKV GEMM writes them.

#include <functional>
#include <string>
#include <vector>

#include "bench/step.h"
#include "kernels/attention/attention.h"

namespace ring {

// A forward and a backward over `rows` rows of random numbers. Spans and pattern are not set yet.
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
  // Their `causal` is replaced by AttentionGrid::causal. Block patterns must have one rule for all heads.
  std::vector<NamedPattern> patterns = {{"dense", {}}};
  std::vector<std::string> candidates;  // kernels to time; empty for all
  double dropout = 0;                   // dropout rate of attention weights
  int rounds = 1;          // all kernels of a shape are measured in turn, this many times; the medians count
  double seconds = 0.2;    // per measurement
  double rest = 0;         // idle seconds before each measurement, to let a GPU's clocks recover
  double max_seconds = 2;  // skips a kernel if its last rate predicts a longer call
};

// The work of a call. select: chooses blocks by content, from queries and keys to bits.
enum class AttentionPass : std::uint8_t { select, forward, backward };

struct AttentionTiming {
  AttentionPass pass = AttentionPass::forward;
  std::string candidate, kind;
  std::int64_t head_dim = 0, length = 0, sequences = 0;
  bool causal = true, deterministic = true;
  double seconds = 0;              // per call; 0 if the kernel was skipped because it would take `expected`
  double spread = 0;               // of the rounds: (max - min) / median
  double flops = 0, expected = 0;  // per call; 0 if not counted. expected: seconds
  double kept = 1;                 // share of dense attention's pairs
  double of_dense = 0;             // seconds over those of the fastest own dense kernel; 0 if not measured
  std::size_t extra_bytes = 0;     // peak bytes of a call beyond its operands, including new lists of a pattern
  // Additional seconds of a call with a new block pattern, for which it builds lists (the backward builds both). 0 for
  // selected blocks: each call builds lists for them, which `seconds` includes.
  double lists_seconds = 0;
};

void check_grid(const AttentionGrid&);  // throws Error if the grid makes no sense

// Reports shape by shape. The forward is independent of ctx.deterministic and is measured once; the backward is
// measured both ways. If a pattern selects blocks, they are selected by the operands' content: selection is a pass of
// its own, and the other passes attend to blocks selected before. Throws Error if the grid makes no sense.
void time_attention(const AttentionGrid&, const ExecContext&,
                    const std::function<void(const AttentionTiming&)>& report);

}  // namespace ring
