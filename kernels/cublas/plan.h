#pragma once
// Plan of a GEMM for cuBLASLt: the descriptors, and the algorithms that can run it.

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "kernels/batched_matmul.h"
#include "kernels/cublas/library.h"
#include "kernels/matmul.h"

namespace ring::cublas {

// Everything that determines which algorithms can run and which is fastest. cuBLASLt's matrices are column-major, so a
// row-major C = A B is requested as C^T = B^T A^T: "left" is our b, "right" is our a, and C has m columns and n rows.
struct Problem {
  enum class Gelu : std::uint8_t { none, forward, backward };

  std::int64_t m = 0, n = 0, k = 0, left_stride = 0, right_stride = 0, out_stride = 0, residual_stride = 0;
  int in_type = 0, out_type = 0, compute = 0;  // cudaDataType_t, cublasComputeType_t
  bool left_transposed = false, right_transposed = false, adds = false, bias = false;
  int left_align = 16, right_align = 16, out_align = 16, residual_align = 16;  // alignment of the addresses in bytes
  Gelu gelu = Gelu::none;
  int gelu_align = 16;     // alignment in bytes of the activation's input, which is contiguous
  std::int64_t batch = 1;  // number of GEMMs, whose matrices are contiguous and adjacent in memory

  auto operator<=>(const Problem&) const = default;
  std::string text() const;  // returns the problem as text, for keys of measured choices
  // Returns true if the library's epilogue may compute the activation.
  bool may_fuse_gelu() const;
};

Problem problem_of(const Matmul&, Precision);
Problem problem_of(const BatchedMatmul&, Precision);

// Descriptors of a problem. run() takes the pointers. The constructor also takes the pointer of the activation's input,
// because its alignment limits which algorithms can run.
class Plan {
 public:
  explicit Plan(const Problem&, const void* gelu = nullptr);
  ~Plan();
  Plan(const Plan&) = delete;
  Plan& operator=(const Plan&) = delete;

  // Returns at most `count` algorithms, best first by the library's estimate. Omits algorithms with large clusters
  // unless all of them have large clusters.
  std::vector<cublasLtMatmulAlgo_t> algorithms(cublasLtHandle_t, std::size_t workspace_bytes, int count) const;
  // Returns true if the algorithm can run the problem with this workspace.
  bool can_run(cublasLtHandle_t, const cublasLtMatmulAlgo_t&, std::size_t workspace_bytes) const;

  struct Operands {
    const void *left, *right, *residual, *bias;
    void* out;
    float beta;
    const void* gelu;  // the activation's input: written by the forward, read by the backward
    float alpha = 1;
  };
  void run(cublasLtHandle_t, const cublasLtMatmulAlgo_t&, const Operands&, void* workspace, std::size_t workspace_bytes,
           cudaStream_t) const;

 private:
  Problem problem_;
  cublasLtMatmulDesc_t desc_ = nullptr;
  cublasLtMatrixLayout_t left_ = nullptr, right_ = nullptr, residual_ = nullptr, out_ = nullptr;
};

// Returns whether an algorithm's clusters have more than 4 thread blocks. Kernels with clusters of 8 end with
// "unspecified launch failure" when processes share a Hopper GPU by time slicing (docs/when_it_fails.md, "Several runs
// on one GPU", bench/programs/time_slices.cpp).
bool has_large_clusters(const cublasLtMatmulAlgo_t&);

// Convert an algorithm to a string and back; the string is valid for one version of the library. from_text() returns
// false if the string is malformed.
std::string to_text(const cublasLtMatmulAlgo_t&);
bool from_text(const std::string& text, cublasLtMatmulAlgo_t& algorithm);

}  // namespace ring::cublas
