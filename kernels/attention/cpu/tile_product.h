#pragma once
// GEMMs of tiles that fit the L1 and L2 caches, for which a library's packing and dispatch would cost as much as the
// GEMM. Every element is summed in the order of k.

#include <cstdint>

namespace ring::cpu {

// C = alpha A B + beta C, with A [m,k], B [k,n], C [m,n]. n is a multiple of 8. C is not read if beta = 0. If k = 0,
// C = beta C.
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
