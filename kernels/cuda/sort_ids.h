#pragma once
#include "kernels/kernel.h"

namespace ring::cuda {

// The positions of ids, ordered by id and, where ids are alike, by position.
struct SortedIds {
  Tensor ids, positions;  // [N] i32
};

// ids [N] i32, counted from first_id on; those outside of `rows` become `rows`: they come last.
SortedIds sort_ids(const Tensor& ids, std::int64_t first_id, std::int64_t rows, const ExecContext& ctx);

}  // namespace ring::cuda
