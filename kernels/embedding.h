#pragma once
#include <algorithm>

#include "kernels/kernel.h"

namespace ring {

// out [N,C] = table[ids], both f32 or both bf16; ids [N] i32 in [0, rows), Error otherwise (from a GPU, which cannot
// raise one without being waited for: the row is NaN). position ids use the same kernel. add: out += instead of out =.
// With all_rows the table is a slice, rows [first_id, first_id + rows) of one with all_rows: ids of its other rows give
// zeros.
struct Embedding {
  Tensor ids, table, out;
  bool add = false;
  std::int64_t first_id = 0, all_rows = 0;
};
inline Cost cost(const Embedding& a) { return cost_of(a.out, {a.ids, a.out, a.add ? a.out : Tensor{}, a.out}); }
inline constinit Kernel<Embedding> embedding_kernel{"embedding"};

// dtable [rows,C] = beta * dtable + sum of dout rows by id, in a fixed order: deterministic. dout and dtable: f32 or
// bf16, each its own; sums are f32. ids outside of [0, rows) are an Error on the CPU and skipped on a GPU. Of a slice
// (see Embedding) ids of other rows are skipped.
struct EmbeddingBackward {
  Tensor ids, dout, dtable;
  float beta = 0;
  std::int64_t first_id = 0, all_rows = 0;
};
// beta = 1 touches only the rows of ids that occur: at most as many as tokens.
inline Cost cost(const EmbeddingBackward& a) {
  const double touched = std::min(bytes_of({a.dtable}), bytes_of({a.dout}));
  return {0, bytes_of({a.ids, a.dout}) + (a.beta == 0 ? bytes_of({a.dtable}) : 2 * touched), short_text(a.dout)};
}
inline constinit Kernel<EmbeddingBackward> embedding_backward_kernel{"embedding_backward"};

// Rows of the table of which `table` may be a slice. Error: it does not lie in it.
inline std::int64_t rows_of_whole(std::string_view op, const Tensor& table, std::int64_t first_id,
                                  std::int64_t all_rows) {
  const std::int64_t rows = table.dim(0), all = all_rows ? all_rows : rows;
  RING_CHECK(first_id >= 0 && first_id + rows <= all, op, ": a slice of ", rows, " rows from ", first_id,
             " on does not lie in a table of ", all);
  return all;
}

}  // namespace ring
