#pragma once
#include "kernels/kernel.h"

namespace ring {

// out [N,C] = table[ids]; ids [N] i32 in [0, rows), Error otherwise (from a GPU, which cannot raise one without being
// waited for: the row is NaN). position ids use the same kernel. add: out += instead of out =.
struct Embedding {
  Tensor ids, table, out;
  bool add = false;
};
inline constinit Kernel<Embedding> embedding_kernel{"embedding"};

// dtable [rows,C] = beta * dtable + sum of dout rows by id. Each table row is summed in order of N: deterministic.
struct EmbeddingBackward {
  Tensor ids, dout, dtable;
  float beta = 0;
};
inline constinit Kernel<EmbeddingBackward> embedding_backward_kernel{"embedding_backward"};

}  // namespace ring
