// Shows that cuBLASLt GEMMs with clusters of 8 blocks fail on Hopper GPUs that several processes share by time slicing:
// "unspecified launch failure", because a block of a cluster reads the shared memory of a block that has ended
// ("cluster target block not present"). Plain CUDA, without ringmaster's code:
//   g++ -std=c++20 -O2 time_slices.cpp -I/usr/local/cuda/include -L/usr/local/cuda/lib64 -lcublasLt -lcudart
//   ./a.out SECONDS PROCESSES CLUSTER...
// For each CLUSTER (1x1, 2x1, 4x1, 2x4, ... blocks), starts PROCESSES processes that repeat one GEMM for SECONDS with
// an algorithm of that cluster shape and compare its results with the first. Exits with 1 if a process fails.
#include <cublasLt.h>
#include <cuda_runtime.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <string>
#include <vector>

namespace {
constexpr int kOut = 256, kIn = 256, kTokens = 32768;  // y = W x + residual, as in a transformer block
constexpr int kAlgorithms = 256, kProductsPerCheck = 200;
constexpr std::size_t kWorkspace = 32 << 20;

[[noreturn]] void fail(const char* call, const char* reason) {
  std::printf("    process %d: %s: %s\n", getpid(), call, reason);
  std::fflush(stdout);
  _exit(1);
}
void check(cudaError_t status, const char* call) {
  if (status != cudaSuccess) fail(call, cudaGetErrorString(status));
}
void check(cublasStatus_t status, const char* call) {
  if (status != CUBLAS_STATUS_SUCCESS) fail(call, cublasLtGetStatusString(status));
}
#define CHECK(call) check(call, #call)

template <class T>
T* device(std::size_t count) {
  void* p = nullptr;
  CHECK(cudaMalloc(&p, count * sizeof(T)));
  return static_cast<T*>(p);
}

// Fills a matrix with bf16 values between -1 and 1.
std::uint16_t* matrix(std::size_t count, std::uint32_t seed) {
  std::vector<std::uint16_t> values(count);
  for (auto& v : values) {
    seed = seed * 1664525 + 1013904223;
    const float x = static_cast<float>(seed >> 8) / 8388608.0f - 1;
    std::uint32_t bits;
    static_assert(sizeof bits == sizeof x);
    __builtin_memcpy(&bits, &x, sizeof x);
    v = static_cast<std::uint16_t>(bits >> 16);
  }
  auto* p = device<std::uint16_t>(count);
  CHECK(cudaMemcpy(p, values.data(), 2 * count, cudaMemcpyHostToDevice));
  return p;
}

// Sets the algorithm's cluster shape.
void set_clusters(cublasLtMatmulAlgo_t& algo, const std::string& shape) {
  const std::map<std::string, std::uint16_t> shapes = {
      {"1x1", CUBLASLT_CLUSTER_SHAPE_1x1x1}, {"2x1", CUBLASLT_CLUSTER_SHAPE_2x1x1},
      {"1x2", CUBLASLT_CLUSTER_SHAPE_1x2x1}, {"4x1", CUBLASLT_CLUSTER_SHAPE_4x1x1},
      {"2x2", CUBLASLT_CLUSTER_SHAPE_2x2x1}, {"1x4", CUBLASLT_CLUSTER_SHAPE_1x4x1},
      {"4x2", CUBLASLT_CLUSTER_SHAPE_4x2x1}, {"2x4", CUBLASLT_CLUSTER_SHAPE_2x4x1},
      {"8x1", CUBLASLT_CLUSTER_SHAPE_8x1x1}, {"1x8", CUBLASLT_CLUSTER_SHAPE_1x8x1},
      {"4x4", CUBLASLT_CLUSTER_SHAPE_4x4x1}};
  const auto found = shapes.find(shape);
  if (found == shapes.end()) std::fprintf(stderr, "unknown clusters %s\n", shape.c_str()), _exit(2);
  CHECK(cublasLtMatmulAlgoConfigSetAttribute(&algo, CUBLASLT_ALGO_CONFIG_CLUSTER_SHAPE_ID, &found->second,
                                             sizeof found->second));
}

[[noreturn]] void multiply(double seconds, const std::string& clusters) {
  cublasLtHandle_t handle;
  cublasLtMatmulDesc_t product;
  cublasLtMatrixLayout_t w_layout, x_layout, y_layout;
  cublasLtMatmulPreference_t preference;
  CHECK(cublasLtCreate(&handle));
  CHECK(cublasLtMatmulDescCreate(&product, CUBLAS_COMPUTE_32F, CUDA_R_32F));
  const cublasOperation_t transposed = CUBLAS_OP_T;
  CHECK(cublasLtMatmulDescSetAttribute(product, CUBLASLT_MATMUL_DESC_TRANSA, &transposed, sizeof transposed));
  CHECK(cublasLtMatrixLayoutCreate(&w_layout, CUDA_R_16BF, kIn, kOut, kIn));
  CHECK(cublasLtMatrixLayoutCreate(&x_layout, CUDA_R_16BF, kIn, kTokens, kIn));
  CHECK(cublasLtMatrixLayoutCreate(&y_layout, CUDA_R_16BF, kOut, kTokens, kOut));
  CHECK(cublasLtMatmulPreferenceCreate(&preference));
  CHECK(cublasLtMatmulPreferenceSetAttribute(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &kWorkspace,
                                             sizeof kWorkspace));
  std::vector<cublasLtMatmulHeuristicResult_t> found(kAlgorithms);
  int count = 0;
  CHECK(cublasLtMatmulAlgoGetHeuristic(handle, product, w_layout, x_layout, y_layout, y_layout, preference, kAlgorithms,
                                       found.data(), &count));
  // Finds the first algorithm that supports these clusters.
  const cublasLtMatmulAlgo_t* algo = nullptr;
  for (int i = 0; i < count && !algo; ++i) {
    set_clusters(found[i].algo, clusters);
    cublasLtMatmulHeuristicResult_t result;
    if (cublasLtMatmulAlgoCheck(handle, product, w_layout, x_layout, y_layout, y_layout, &found[i].algo, &result) ==
        CUBLAS_STATUS_SUCCESS)
      algo = &found[i].algo;
  }
  if (!algo) fail("cublasLtMatmulAlgoCheck", "no algorithm supports these clusters");

  const std::size_t outputs = std::size_t{kOut} * kTokens;
  std::uint16_t *w = matrix(kOut * kIn, 1), *x = matrix(std::size_t{kIn} * kTokens, 2), *residual = matrix(outputs, 3);
  auto* y = device<std::uint16_t>(outputs);
  auto* workspace = device<char>(kWorkspace);
  const float one = 1;
  std::vector<std::uint16_t> first(outputs), result(outputs);
  long products = 0, wrong = 0;
  const auto begin = std::chrono::steady_clock::now();
  while (std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count() < seconds) {
    for (int i = 0; i < kProductsPerCheck; ++i, ++products)
      CHECK(cublasLtMatmul(handle, product, &one, w, w_layout, x, x_layout, &one, residual, y_layout, y, y_layout, algo,
                           workspace, kWorkspace, nullptr));
    CHECK(cudaDeviceSynchronize());
    CHECK(cudaMemcpy(result.data(), y, 2 * outputs, cudaMemcpyDeviceToHost));
    if (first == std::vector<std::uint16_t>(outputs)) first = result;
    wrong += result != first;
  }
  if (wrong)
    std::printf("    process %d: %ld of %ld results are wrong\n", getpid(), wrong, products / kProductsPerCheck);
  std::fflush(stdout);
  _exit(wrong != 0);
}
}  // namespace

int main(int argc, char** argv) {
  if (argc < 4) return std::fprintf(stderr, "usage: %s SECONDS PROCESSES CLUSTER...\n", argv[0]), 2;
  bool all_good = true;
  const int processes = std::atoi(argv[2]);
  for (int i = 3; i < argc; ++i) {
    std::fflush(stdout);
    for (int p = 0; p < processes; ++p)
      if (fork() == 0) multiply(std::atof(argv[1]), argv[i]);
    int status = 0, failed = 0;
    while (wait(&status) > 0) failed += status != 0;
    std::printf("clusters of %s blocks: %d of %d processes failed\n", argv[i], failed, processes);
    all_good &= failed == 0;
  }
  return all_good ? 0 : 1;
}
