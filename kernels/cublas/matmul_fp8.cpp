// MatmulFp8 with cuBLASLt. The library's scale layouts for Hopper (12.9 and later) are those of Fp8Matrix. With
// tensorwise scales, the library's "fast accumulation" stays off: the tensor cores would accumulate all of K, with an
// error that grows with K and is biased towards 0 (docs/measured/fp8.md).

#include <algorithm>
#include <array>
#include <map>
#include <optional>

#include "core/cuda/check.h"
#include "core/cuda/handles.h"
#include "core/cuda/launches.h"
#include "kernels/choice.h"
#include "kernels/cublas/plan.h"
#include "kernels/cublas/workspace.h"
#include "kernels/fp8.h"

namespace ring::cublas {
namespace {

constexpr std::size_t kFirstVersion = 120900;  // first version of the library with these scales

// Returns the alignment in bytes of a tensor's address, but at most 256, since larger alignments make
// no difference to the library.
int alignment(const Tensor& t) {
  constexpr std::uintptr_t kMax = 256;
  const auto address = reinterpret_cast<std::uintptr_t>(t.raw());
  return static_cast<int>(std::min(kMax, address & (~address + 1)));
}

// Everything that determines the plan. cuBLASLt's matrices are column-major: "left" is our b, "right" is our a, and the
// m rows of its result are the columns of our c.
struct Fp8Problem {
  std::int64_t m = 0, n = 0, k = 0, left_stride = 0, right_stride = 0, out_stride = 0;
  std::int64_t addend_stride = 0;  // of the matrix that is added to the product; if none, of the output
  int left_align = 0, right_align = 0, out_align = 0, addend_align = 0;
  bool tensorwise = false, half = false, adds = false, bias = false;
  auto operator<=>(const Fp8Problem&) const = default;
};
const Tensor& addend(const MatmulFp8& p) { return p.residual.defined() ? p.residual : p.c; }

Fp8Problem problem_of(const MatmulFp8& p) {
  return {.m = p.c.dim(1),
          .n = p.c.dim(0),
          .k = p.a.values.dim(1),
          .left_stride = p.b.values.stride(0),
          .right_stride = p.a.values.stride(0),
          .out_stride = p.c.stride(0),
          .addend_stride = addend(p).stride(0),
          .left_align = alignment(p.b.values),
          .right_align = alignment(p.a.values),
          .out_align = alignment(p.c),
          .addend_align = alignment(addend(p)),
          .tensorwise = p.b.blocks == Fp8Blocks::tensor,
          .half = p.c.dtype() == DType::bf16,
          .adds = p.accumulate || p.residual.defined(),
          .bias = p.bias.defined()};
}

cublasLtMatmulMatrixScale_t scale_mode(Fp8Blocks blocks) {
  switch (blocks) {
    case Fp8Blocks::rows: return CUBLASLT_MATMUL_MATRIX_SCALE_VEC128_32F;
    case Fp8Blocks::squares: return CUBLASLT_MATMUL_MATRIX_SCALE_BLK128x128_32F;
    default: return CUBLASLT_MATMUL_MATRIX_SCALE_SCALAR_32F;
  }
}

class Fp8Plan {
 public:
  // args: only its pointers of scales and bias are used; the library needs them to find an algorithm.
  Fp8Plan(const Fp8Problem& p, const MatmulFp8& args, cublasLtHandle_t handle) : handle_(handle), adds_(p.adds) {
    const Library& l = library();
    RING_CUBLAS_CHECK(l.desc_create(&desc_, CUBLAS_COMPUTE_32F, CUDA_R_32F));
    set(CUBLASLT_MATMUL_DESC_TRANSA, CUBLAS_OP_T);
    set(CUBLASLT_MATMUL_DESC_A_SCALE_MODE, scale_mode(args.b.blocks));
    set(CUBLASLT_MATMUL_DESC_B_SCALE_MODE, scale_mode(args.a.blocks));
    const auto layout = [&](cublasLtMatrixLayout_t& to, cudaDataType_t type, std::int64_t rows, std::int64_t columns,
                            std::int64_t stride) {
      RING_CUBLAS_CHECK(
          l.layout_create(&to, type, static_cast<std::uint64_t>(rows), static_cast<std::uint64_t>(columns), stride));
    };
    layout(left_, CUDA_R_8F_E4M3, p.k, p.m, p.left_stride);
    layout(right_, CUDA_R_8F_E4M3, p.k, p.n, p.right_stride);
    const cudaDataType_t type = p.half ? CUDA_R_16BF : CUDA_R_32F;
    layout(out_, type, p.m, p.n, p.out_stride);
    layout(addend_, type, p.m, p.n, p.addend_stride);
    if (p.bias) {
      set(CUBLASLT_MATMUL_DESC_EPILOGUE, CUBLASLT_EPILOGUE_BIAS);
      set(CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, type);
    }
    set_pointers(args);
    find_algorithm(p);
  }
  ~Fp8Plan() {
    for (cublasLtMatrixLayout_t layout : {left_, right_, out_, addend_})
      if (layout) library().layout_destroy(layout);
    if (desc_) library().desc_destroy(desc_);
  }
  Fp8Plan(const Fp8Plan&) = delete;
  Fp8Plan& operator=(const Fp8Plan&) = delete;

  bool can_run() const { return algo_.has_value(); }
  void run(const MatmulFp8& p, const Workspace& workspace, cudaStream_t stream) const {
    set_pointers(p);
    const float alpha = 1, beta = adds_ ? 1.0f : 0.0f;
    cuda::log_library_call(stream, "cuBLASLt");
    RING_CUBLAS_CHECK(library().matmul(handle_, desc_, &alpha, p.b.values.raw(), left_, p.a.values.raw(), right_, &beta,
                                       addend(p).raw(), addend_, p.c.raw(), out_, &*algo_, workspace.data(),
                                       Workspace::kBytes, stream));
  }

 private:
  template <class T>
  void set(cublasLtMatmulDescAttributes_t what, const T& value) const {
    RING_CUBLAS_CHECK(library().desc_set(desc_, what, &value, sizeof value));
  }
  void set_pointers(const MatmulFp8& p) const {
    set(CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, static_cast<const void*>(p.b.scales.raw()));
    set(CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, static_cast<const void*>(p.a.scales.raw()));
    if (p.bias.defined()) set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, static_cast<const void*>(p.bias.raw()));
  }
  void find_algorithm(const Fp8Problem& p) {
    const Library& l = library();
    cublasLtMatmulPreference_t preference = nullptr;
    RING_CUBLAS_CHECK(l.preference_create(&preference));
    const auto prefer = [&](cublasLtMatmulPreferenceAttributes_t what, const auto& value) {
      RING_CUBLAS_CHECK(l.preference_set(preference, what, &value, sizeof value));
    };
    prefer(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, Workspace::kBytes);
    prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, static_cast<std::uint32_t>(p.left_align));
    prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, static_cast<std::uint32_t>(p.right_align));
    prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, static_cast<std::uint32_t>(p.addend_align));
    prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, static_cast<std::uint32_t>(p.out_align));
    std::array<cublasLtMatmulHeuristicResult_t, 8> found{};
    int count = 0;
    const cublasStatus_t status = l.heuristic(handle_, desc_, left_, right_, addend_, out_, preference,
                                              static_cast<int>(found.size()), found.data(), &count);
    l.preference_destroy(preference);
    if (status != CUBLAS_STATUS_SUCCESS) return;
    for (int i = 0; i < count && !algo_; ++i)
      if (!has_large_clusters(found[static_cast<std::size_t>(i)].algo)) algo_ = found[static_cast<std::size_t>(i)].algo;
  }

  cublasLtHandle_t handle_;
  bool adds_;
  cublasLtMatmulDesc_t desc_ = nullptr;
  cublasLtMatrixLayout_t left_ = nullptr, right_ = nullptr, out_ = nullptr, addend_ = nullptr;
  std::optional<cublasLtMatmulAlgo_t> algo_;
};

// The workspace of one stream, and the plans of the problems seen so far.
class Engine {
 public:
  explicit Engine(StreamImpl& stream) : workspace_(stream), stream_(static_cast<cudaStream_t>(stream.native())) {}

  const Fp8Plan& plan_of(const MatmulFp8& p) {
    const Fp8Problem problem = problem_of(p);
    return plans_.try_emplace(problem, problem, p, workspace_.handle()).first->second;
  }
  void run(const MatmulFp8& p) { plan_of(p).run(p, workspace_, stream_); }

 private:
  Workspace workspace_;
  cudaStream_t stream_;
  std::map<Fp8Problem, Fp8Plan> plans_;
};

Engine& engine_of(const ExecContext& ctx) { return ctx.stream.impl().resource<Engine>(); }

bool supports(const MatmulFp8& p, const ExecContext& ctx) {
  if (p.c.numel() == 0 || p.a.values.dim(1) == 0 || library().version() < kFirstVersion) return false;
  const cuda::OnDevice on(ctx.stream.device().index);
  return engine_of(ctx).plan_of(p).can_run();
}

void run(const MatmulFp8& p, const ExecContext& ctx) {
  check(p);
  const cuda::OnDevice on(ctx.stream.device().index);
  engine_of(ctx).run(p);
}

const bool added[] = {
    matmul_fp8_kernel.add(Backend::cuda, {"cublaslt", run, supports, 5}),
    add_choice_library("cublaslt", [] { return str("cuBLASLt ", library().version()); }),
};

}  // namespace
}  // namespace ring::cublas
