#pragma once
// Products of tiles that lie in the first caches, where a library's packing and choosing would cost as much as the
// product. Every element is summed in the order of k.

#include <cstdint>

namespace ring::cpu {

// C = alpha A B + beta C. n is a multiple of 8; beta = 0 never reads C, and without k it becomes beta C.
struct TileProduct {
  std::int64_t m = 0, n = 0, k = 0;
  const float* a = nullptr;
  std::int64_t a_row = 0, a_column = 1;  // A[i][l] is a[i a_row + l a_column]
  const float* b = nullptr;
  std::int64_t ldb = 0;
  float* c = nullptr;
  std::int64_t ldc = 0;
  float alpha = 1, beta = 0;
};
void tile_product(const TileProduct&);

}  // namespace ring::cpu
