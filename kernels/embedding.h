#pragma once
#include <algorithm>

#include "kernels/kernel.h"

namespace ring {

// out [N,C] = table[ids], both f32 or both bf16; ids [N] i32 in [0, rows), Error otherwise (from a GPU, which cannot
// raise one without being waited for: the row is NaN). position ids use the same kernel. add: out += instead of out =.
struct Embedding {
  Tensor ids, table, out;
  bool add = false;
};
inline Cost cost(const Embedding& a) { return cost_of(a.out, {a.ids, a.out, a.add ? a.out : Tensor{}, a.out}); }
inline constinit Kernel<Embedding> embedding_kernel{"embedding"};

// dtable [rows,C] = beta * dtable + sum of dout rows by id, in a fixed order: deterministic. dout and dtable: f32 or
// bf16, each its own; sums are f32. ids outside of [0, rows) are an Error on the CPU and skipped on a GPU.
struct EmbeddingBackward {
  Tensor ids, dout, dtable;
  float beta = 0;
};
// beta = 1 touches only the rows of ids that occur: at most as many as tokens.
inline Cost cost(const EmbeddingBackward& a) {
  const double touched = std::min(bytes_of({a.dtable}), bytes_of({a.dout}));
  return {0, bytes_of({a.ids, a.dout}) + (a.beta == 0 ? bytes_of({a.dtable}) : 2 * touched), short_text(a.dout)};
}
inline constinit Kernel<EmbeddingBackward> embedding_backward_kernel{"embedding_backward"};

}  // namespace ring
