#pragma once
#include "kernels/kernel.h"

namespace ring::cuda {

// Positions of ids, sorted by id and, for equal ids, by position.
struct SortedIds {
  Tensor ids, positions;  // [N] i32
};

// Subtracts first_id from ids [N] i32, and sorts the results. Results outside [0, rows) become `rows`, so they come
// last.
SortedIds sort_ids(const Tensor& ids, std::int64_t first_id, std::int64_t rows, const ExecContext& ctx);

}  // namespace ring::cuda
