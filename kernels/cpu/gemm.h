#pragma once
// Interface to GEMM libraries on CPUs: a single-threaded GEMM of row-major f32 matrices. Each library is registered
// under a name; all parallelism comes from the project's thread pool (pooled_matmul). Thread-safe.

#include <cstdint>
#include <string_view>
#include <vector>

#include "kernels/matmul.h"

namespace ring::cpu {

// C = alpha op(A) op(B) + beta C. op(A) is [m,k] and op(B) is [k,n]: each is the matrix itself or its transpose. ld*
// are row strides in floats. C is not read if beta = 0.
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
  GemmFn fn;              // requires m, n, k >= 1
  int priority;           // higher is preferred
};
// Returns the libraries of this build, highest priority first.
const std::vector<GemmLibrary>& gemm_libraries();
// Throws Error, listing the libraries of this build, if there is none with this name.
const GemmLibrary& find_gemm(std::string_view name);
// Returns the library named by the environment variable RINGMASTER_GEMM, or else the one with the highest priority.
const GemmLibrary& chosen_gemm();

void gemm(const Gemm&);  // uses chosen_gemm(); m, n and k may be 0

// Runs a Matmul: divides C statically among the threads of the context's pool, and calls `fn` once per part.
void pooled_matmul(const Matmul&, const ExecContext&, GemmFn fn);

// Registers a library. Returns true.
bool add_gemm_library(const GemmLibrary&);
// Registers a library, also as a candidate of the Matmul slot. Call from a static initializer. Returns true.
template <GemmFn fn>
bool add_gemm(std::string_view name, int priority) {
  matmul_kernel.add(Backend::cpu, {name, [](const Matmul& m, const ExecContext& ctx) { pooled_matmul(m, ctx, fn); },
                                   [](const Matmul&, const ExecContext&) { return chosen_gemm().fn == fn; }, priority});
  return add_gemm_library({name, fn, priority});
}

}  // namespace ring::cpu
