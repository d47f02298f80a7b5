#pragma once
// Every attention kernel of this build on the operands that training gives it: queries, keys and values side by side in
// one buffer, as the product that makes them leaves them.

#include <functional>
#include <string>
#include <vector>

#include "trainer/benchmark.h"

namespace ring {

struct AttentionGrid {
  std::int64_t heads = 16, kv_heads = 16, tokens = 16384;  // tokens: in a batch, at least one sequence
  std::vector<std::int64_t> head_dims, lengths;
  std::vector<bool> causal;
  double seconds = 0.2;     // of each measurement
  double most_seconds = 2;  // a kernel whose call would take longer, as its last rate tells, is left out
};

struct AttentionTiming {
  std::string candidate;
  std::int64_t head_dim = 0, length = 0, sequences = 0;
  bool causal = true, backward = false, deterministic = true;
  double seconds = 0;  // of one call; 0: left out, it would take `expected`
  double flops = 0, expected = 0;
};

void check_grid(const AttentionGrid&);  // Error: it makes no sense

// Reports each as soon as it is measured. The forward does not depend on ctx.deterministic and is measured once; the
// backward both ways. Error: the grid makes no sense.
void time_attention(const AttentionGrid&, const Context&, const std::function<void(const AttentionTiming&)>& report);

}  // namespace ring
