#pragma once
// The one seam to matrix libraries on the CPU: a single-threaded product on row-major f32. Every library is a named
// choice; all parallelism is our own pool's (pooled_matmul). Safe to call from several threads at once.

#include <cstdint>
#include <string_view>
#include <vector>

#include "kernels/matmul.h"

namespace ring::cpu {

// C = alpha op(A) op(B) + beta C. op(A) is [m,k], op(B) is [k,n]; ld* is the distance of rows in memory. beta = 0 never
// reads C.
struct Gemm {
  bool transpose_a = false, transpose_b = false;
  std::int64_t m = 0, n = 0, k = 0;
  const float* a = nullptr;
  std::int64_t lda = 0;
  const float* b = nullptr;
  std::int64_t ldb = 0;
  float* c = nullptr;
  std::int64_t ldc = 0;
  float alpha = 1, beta = 0;
};
using GemmFn = void (*)(const Gemm&);

struct GemmLibrary {
  std::string_view name;  // "eigen", "openblas", "onednn"
  GemmFn fn;              // for m, n, k >= 1
  int priority;
};
const std::vector<GemmLibrary>& gemm_libraries();     // of this build, best first
const GemmLibrary& find_gemm(std::string_view name);  // Error: names the known ones
// The best one, or the one that the environment variable RINGMASTER_GEMM names.
const GemmLibrary& chosen_gemm();

void gemm(const Gemm&);  // with the chosen library; any extent may be 0

// The Matmul slot's work: C cut statically among the pool's threads, each part one call of `fn`.
void pooled_matmul(const Matmul&, const ExecContext&, GemmFn fn);

// At load time: makes a library known, and a candidate of the Matmul slot.
bool add_gemm_library(const GemmLibrary&);
template <GemmFn fn>
bool add_gemm(std::string_view name, int priority) {
  matmul_kernel.add(Backend::cpu, {name, [](const Matmul& m, const ExecContext& ctx) { pooled_matmul(m, ctx, fn); },
                                   [](const Matmul&, const ExecContext&) { return chosen_gemm().fn == fn; }, priority});
  return add_gemm_library({name, fn, priority});
}

}  // namespace ring::cpu
