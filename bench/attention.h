#pragma once
// Every attention kernel of this build on the operands that training gives it: queries, keys and values side by side in
// one buffer, as the product that makes them leaves them.

#include <functional>
#include <string>
#include <vector>

#include "bench/step.h"
#include "kernels/attention/attention.h"

namespace ring {

// A forward and a backward over so many rows, of random numbers, with neither spans nor a pattern yet.
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
  std::int64_t heads = 16, kv_heads = 16, tokens = 16384;  // tokens: in a batch, at least one sequence
  std::vector<std::int64_t> head_dims, lengths;
  std::vector<bool> causal;
  std::vector<NamedPattern> patterns = {{"dense", {}}};  // causal or not as above; block patterns of one rule
  std::vector<std::string> candidates;                   // empty: all
  double dropout = 0;                                    // rate on weights
  int rounds = 1;           // all kernels of one shape are measured in turn, so many times: their medians
  double seconds = 0.2;     // of each measurement
  double rest = 0;          // seconds without work before each, for the clocks of a GPU that is not warm
  double most_seconds = 2;  // a kernel whose call would take longer, as its last rate tells, is left out
};

// What a call does: choose the blocks that a pattern selects, from queries and keys to bits; or attend.
enum class AttentionPass : std::uint8_t { select, forward, backward };

struct AttentionTiming {
  AttentionPass pass = AttentionPass::forward;
  std::string candidate, kind;
  std::int64_t head_dim = 0, length = 0, sequences = 0;
  bool causal = true, deterministic = true;
  double seconds = 0;              // of one call; 0: left out, it would take `expected`
  double spread = 0;               // of the rounds: (most - least) / median
  double flops = 0, expected = 0;  // 0: not counted
  double kept = 1;                 // pairs, as a share of those of dense attention
  double of_dense = 0;             // seconds, as a share of those of the fastest own dense kernel; 0: not measured
  std::size_t extra_bytes = 0;     // the most that a call takes beside its operands, new lists of a pattern included
  // What a call takes longer with a new block pattern: the backward makes both lists. 0: each call makes its own lists,
  // as it does of blocks that are selected.
  double lists_seconds = 0;
};

void check_grid(const AttentionGrid&);  // Error: it makes no sense

// Reports shape by shape. The forward does not depend on ctx.deterministic and is measured once; the backward both
// ways. Blocks that a pattern selects are those of the operands' content; choosing them is a pass of its own, and what
// the others attend to was chosen before. Error: the grid makes no sense.
void time_attention(const AttentionGrid&, const ExecContext&,
                    const std::function<void(const AttentionTiming&)>& report);

}  // namespace ring
