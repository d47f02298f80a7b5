#pragma once
#include <algorithm>

#include "kernels/kernel.h"

namespace ring {

// out [N,C] = table[ids], or out += table[ids] if `add`. Also used for learned positions.
//   table  [rows,C], f32 or bf16, the type of out. If all_rows > 0, the table is a shard: rows [first_id, first_id +
//          rows) of a table with all_rows. Ids of other shards give zeros.
//   ids    [N] i32. Throws Error if an id is outside the whole table. GPUs cannot report this without synchronizing;
//          there, the row of out is NaN instead.
struct Embedding {
  Tensor ids, table, out;
  bool add = false;
  std::int64_t first_id = 0, all_rows = 0;
};
inline Cost cost(const Embedding& a) { return cost_of(a.out, {a.ids, a.out, a.add ? a.out : Tensor{}, a.out}); }
inline constinit Kernel<Embedding> embedding_kernel{"embedding"};

// dtable [rows,C] = beta * dtable + (for each id, the sum of its rows of dout). Deterministic: sums are f32, in a fixed
// order. dout and dtable are f32 or bf16; their types may differ. Ids outside the whole table throw Error on CPUs and
// are skipped on GPUs. If dtable is a shard (see Embedding), ids of other shards are skipped.
struct EmbeddingBackward {
  Tensor ids, dout, dtable;
  float beta = 0;
  std::int64_t first_id = 0, all_rows = 0;
};
// Counts the whole table if beta is 0. If beta is 1, only rows whose id occurs are read and
// written, at most one row per token.
inline Cost cost(const EmbeddingBackward& a) {
  const double touched = std::min(bytes_of({a.dtable}), bytes_of({a.dout}));
  return {0, bytes_of({a.ids, a.dout}) + (a.beta == 0 ? bytes_of({a.dtable}) : 2 * touched), short_text(a.dout)};
}
inline constinit Kernel<EmbeddingBackward> embedding_backward_kernel{"embedding_backward"};

// Returns the number of rows of the whole table, of which `table` may be a shard (all_rows > 0). Throws Error, naming
// `op`, if the shard exceeds the whole table.
inline std::int64_t rows_of_whole(std::string_view op, const Tensor& table, std::int64_t first_id,
                                  std::int64_t all_rows) {
  const std::int64_t rows = table.dim(0), all = all_rows ? all_rows : rows;
  RING_CHECK(first_id >= 0 && first_id + rows <= all, op, ": a slice of ", rows, " rows from ", first_id,
             " on does not fit into a table of ", all);
  return all;
}

}  // namespace ring
