#include "kernels/cublas/plan.h"

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <iterator>

#include "core/cuda/launches.h"
#include "kernels/matmul_gelu.h"
#include "kernels/rows.h"

namespace ring::cublas {
namespace {

constexpr int kMaxAlign = 256;      // bytes; larger alignments make no difference to the library
constexpr int kMaxAlgorithms = 32;  // maximum algorithms requested from the library

cudaDataType_t data_type(const Tensor& t) {
  RING_CHECK(t.dtype() == DType::f32 || t.dtype() == DType::bf16, "matmul of ", describe(t));
  return t.dtype() == DType::f32 ? CUDA_R_32F : CUDA_R_16BF;
}

int alignment(const Tensor& t) {
  const auto address = reinterpret_cast<std::uintptr_t>(t.raw());
  return static_cast<int>(std::min<std::uintptr_t>(kMaxAlign, address & (~address + 1)));
}

std::int64_t row_stride(const Tensor& t) {
  RING_CHECK(t.shape().size() == 2, "matmul: ", describe(t), " is not a matrix");
  RING_CHECK(t.dim(1) <= 1 || t.stride(1) == 1, "matmul: the last dim of ", describe(t), " is strided by ",
             t.stride(1));
  return std::max(t.dim(1), t.dim(0) <= 1 ? t.dim(1) : t.stride(0));
}

void check_types(const Matmul& args) {
  check_gelu(args);
  const DType in = args.a.dtype(), out = args.c.dtype();
  RING_CHECK(args.b.dtype() == in && (out == in || out == DType::f32), "matmul of ", describe(args.a), " and ",
             describe(args.b), " into ", describe(args.c), ": types do not fit");
  if (args.bias.defined()) {
    check_numel("matmul", "bias", args.bias, args.c.dim(1));
    RING_CHECK(args.bias.dtype() == in && args.beta == 0, "matmul: bias ", describe(args.bias), ", beta ", args.beta);
  }
  if (!args.residual.defined()) return;
  check_shape("matmul", "residual", args.residual, args.c.shape());
  RING_CHECK(args.residual.dtype() == out && args.beta == 0, "matmul: residual ", describe(args.residual), ", beta ",
             args.beta);
}

template <class T>
void set(cublasLtMatmulDesc_t desc, cublasLtMatmulDescAttributes_t what, const T& value) {
  RING_CUBLAS_CHECK(library().desc_set(desc, what, &value, sizeof value));
}
template <class T>
void set(cublasLtMatmulPreference_t preference, cublasLtMatmulPreferenceAttributes_t what, const T& value) {
  RING_CUBLAS_CHECK(library().preference_set(preference, what, &value, sizeof value));
}

void set_batch(cublasLtMatrixLayout_t layout, std::int32_t count, std::int64_t distance) {
  const Library& l = library();
  RING_CUBLAS_CHECK(l.layout_set(layout, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &count, sizeof count));
  RING_CUBLAS_CHECK(l.layout_set(layout, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, &distance, sizeof distance));
}

cublasLtEpilogue_t epilogue_of(const Problem& p) {
  switch (p.gelu) {
    case Problem::Gelu::forward: return p.bias ? CUBLASLT_EPILOGUE_GELU_AUX_BIAS : CUBLASLT_EPILOGUE_GELU_AUX;
    case Problem::Gelu::backward: return CUBLASLT_EPILOGUE_DGELU;
    case Problem::Gelu::none: break;
  }
  return p.bias ? CUBLASLT_EPILOGUE_BIAS : CUBLASLT_EPILOGUE_DEFAULT;
}

}  // namespace

Problem problem_of(const Matmul& args, Precision precision) {
  const Tensor &a = args.a, &b = args.b, &c = args.c;
  Problem p{.left_stride = row_stride(b), .right_stride = row_stride(a), .out_stride = row_stride(c)};
  check_types(args);
  p.m = c.dim(1);
  p.n = c.dim(0);
  p.k = a.dim(args.transpose_a ? 0 : 1);
  RING_CHECK(a.dim(args.transpose_a ? 1 : 0) == p.n && b.dim(args.transpose_b ? 1 : 0) == p.k &&
                 b.dim(args.transpose_b ? 0 : 1) == p.m,
             "matmul of ", describe(a), args.transpose_a ? "^T" : "", " and ", describe(b),
             args.transpose_b ? "^T" : "", " into ", describe(c), ": shapes do not fit");
  p.in_type = data_type(a);
  p.out_type = data_type(c);
  const bool tf32 = a.dtype() == DType::f32 && precision == Precision::tf32;
  p.compute = tf32 ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F;
  p.left_transposed = args.transpose_b;
  p.right_transposed = args.transpose_a;
  p.adds = args.beta != 0 || args.residual.defined();
  p.bias = args.bias.defined();
  const Tensor& added = args.residual.defined() ? args.residual : c;
  p.residual_stride = row_stride(added);
  p.left_align = alignment(b);
  p.right_align = alignment(a);
  p.out_align = alignment(c);
  p.residual_align = alignment(added);
  if (has_gelu(args)) {
    p.gelu = args.gelu_input.defined() ? Problem::Gelu::forward : Problem::Gelu::backward;
    p.gelu_align = alignment(gelu_operand(args));
  }
  return p;
}

Problem problem_of(const BatchedMatmul& args, Precision precision) {
  check(args);
  const auto first = [](const Tensor& t) { return t.narrow(0, 0, 1).view({t.dim(1), t.dim(2)}); };
  Matmul one{.a = first(args.a), .b = first(args.b), .c = first(args.c)};
  one.transpose_a = args.transpose_a;
  one.transpose_b = args.transpose_b;
  if (args.add.defined()) one.residual = first(args.add);
  Problem p = problem_of(one, precision);
  p.batch = args.c.dim(0);
  // An alignment must hold for all matrices of a batch, so it must also divide the distance between matrices in bytes.
  const auto align = [](int& of_first, const Tensor& t) {
    const std::int64_t bytes = t.dim(1) * t.dim(2) * static_cast<std::int64_t>(size_of(t.dtype()));
    of_first = static_cast<int>(std::min<std::int64_t>(of_first, bytes & (~bytes + 1)));
  };
  align(p.left_align, args.b);
  align(p.right_align, args.a);
  align(p.out_align, args.c);
  align(p.residual_align, args.c);
  return p;
}

// The library requires rows of multiples of 16 bytes. Its tanh is approximate: accurate enough for bf16, not for f32.
bool Problem::may_fuse_gelu() const {
  return gelu != Gelu::none && out_type == CUDA_R_16BF && m % 8 == 0 && gelu_align >= 16;
}

// Leaves out strides if all matrices are contiguous, and alignments if all are at least 256 bytes (the usual case).
std::string Problem::text() const {
  const auto type = [](int t) { return t == CUDA_R_32F ? "f32" : "bf16"; };
  std::string text = str(type(in_type), "->", type(out_type), compute == CUBLAS_COMPUTE_32F_FAST_TF32 ? " tf32 " : " ",
                         n, 'x', m, 'x', k, ' ', right_transposed ? 'T' : 'N', left_transposed ? 'T' : 'N');
  if (adds) text += " add";
  if (bias) text += " bias";
  if (gelu != Gelu::none) text += str(gelu == Gelu::forward ? " gelu " : " dgelu ", gelu_align);
  if (batch > 1) text += str(" batch ", batch);
  const std::int64_t left = left_transposed ? k : m, right = right_transposed ? n : k;
  if (right_stride != right || left_stride != left || out_stride != m || residual_stride != m)
    text += str(" strides ", right_stride, ' ', left_stride, ' ', out_stride, ' ', residual_stride);
  if (std::min({right_align, left_align, out_align, residual_align}) < kMaxAlign)
    text += str(" align ", right_align, ' ', left_align, ' ', out_align, ' ', residual_align);
  return text;
}

Plan::Plan(const Problem& p, const void* gelu) : problem_(p) {
  const Library& l = library();
  RING_CUBLAS_CHECK(l.desc_create(&desc_, static_cast<cublasComputeType_t>(p.compute), CUDA_R_32F));
  set(desc_, CUBLASLT_MATMUL_DESC_TRANSA, p.left_transposed ? CUBLAS_OP_T : CUBLAS_OP_N);
  set(desc_, CUBLASLT_MATMUL_DESC_TRANSB, p.right_transposed ? CUBLAS_OP_T : CUBLAS_OP_N);
  set(desc_, CUBLASLT_MATMUL_DESC_EPILOGUE, epilogue_of(p));
  if (p.bias) set(desc_, CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, static_cast<cudaDataType_t>(p.in_type));
  if (p.gelu != Problem::Gelu::none) {
    set(desc_, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, gelu);
    set(desc_, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, p.m);
  }
  const auto layout = [&](cublasLtMatrixLayout_t& out, int type, std::int64_t rows, std::int64_t columns,
                          std::int64_t stride) {
    RING_CUBLAS_CHECK(l.layout_create(&out, static_cast<cudaDataType_t>(type), static_cast<std::uint64_t>(rows),
                                      static_cast<std::uint64_t>(columns), stride));
    if (p.batch > 1) set_batch(out, static_cast<std::int32_t>(p.batch), stride * columns);
  };
  layout(left_, p.in_type, p.left_transposed ? p.k : p.m, p.left_transposed ? p.m : p.k, p.left_stride);
  layout(right_, p.in_type, p.right_transposed ? p.n : p.k, p.right_transposed ? p.k : p.n, p.right_stride);
  layout(residual_, p.out_type, p.m, p.n, p.residual_stride);
  layout(out_, p.out_type, p.m, p.n, p.out_stride);
}

Plan::~Plan() {
  const Library& l = library();
  for (cublasLtMatrixLayout_t layout : {left_, right_, residual_, out_})
    if (layout) l.layout_destroy(layout);
  if (desc_) l.desc_destroy(desc_);
}

std::vector<cublasLtMatmulAlgo_t> Plan::algorithms(cublasLtHandle_t handle, std::size_t workspace_bytes,
                                                   int count) const {
  const Library& l = library();
  cublasLtMatmulPreference_t preference = nullptr;
  RING_CUBLAS_CHECK(l.preference_create(&preference));
  set(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, workspace_bytes);
  // With split-K, partial sums are added in f32, never in the output's type, because bf16 would lose precision.
  set(preference, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
      static_cast<std::uint32_t>(CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE));
  set(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, static_cast<std::uint32_t>(problem_.left_align));
  set(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, static_cast<std::uint32_t>(problem_.right_align));
  set(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, static_cast<std::uint32_t>(problem_.residual_align));
  set(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, static_cast<std::uint32_t>(problem_.out_align));
  std::vector<cublasLtMatmulHeuristicResult_t> found(kMaxAlgorithms);
  int returned = 0;
  const cublasStatus_t status =
      l.heuristic(handle, desc_, left_, right_, residual_, out_, preference, kMaxAlgorithms, found.data(), &returned);
  l.preference_destroy(preference);
  const bool unknown_epilogue = problem_.gelu != Problem::Gelu::none && status == CUBLAS_STATUS_INVALID_VALUE;
  if (status != CUBLAS_STATUS_NOT_SUPPORTED && !unknown_epilogue) RING_CUBLAS_CHECK(status);
  std::vector<cublasLtMatmulAlgo_t> algorithms;
  for (int i = 0; i < returned; ++i)
    if (found[static_cast<std::size_t>(i)].state == CUBLAS_STATUS_SUCCESS)
      algorithms.push_back(found[static_cast<std::size_t>(i)].algo);
  if (!std::ranges::all_of(algorithms, has_large_clusters)) std::erase_if(algorithms, has_large_clusters);
  if (algorithms.size() > static_cast<std::size_t>(count)) algorithms.resize(static_cast<std::size_t>(count));
  return algorithms;
}

bool Plan::can_run(cublasLtHandle_t handle, const cublasLtMatmulAlgo_t& algo, std::size_t workspace_bytes) const {
  cublasLtMatmulHeuristicResult_t result{};
  return library().algo_check(handle, desc_, left_, right_, residual_, out_, &algo, &result) == CUBLAS_STATUS_SUCCESS &&
         result.workspaceSize <= workspace_bytes;
}

void Plan::run(cublasLtHandle_t handle, const cublasLtMatmulAlgo_t& algo, const Operands& o, void* workspace,
               std::size_t workspace_bytes, cudaStream_t stream) const {
  if (problem_.bias) set(desc_, CUBLASLT_MATMUL_DESC_BIAS_POINTER, o.bias);
  if (problem_.gelu != Problem::Gelu::none) set(desc_, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, o.gelu);
  cuda::log_library_call(stream, "cuBLASLt");
  RING_CUBLAS_CHECK(library().matmul(handle, desc_, &o.alpha, o.left, left_, o.right, right_, &o.beta, o.residual,
                                     residual_, o.out, out_, &algo, workspace, workspace_bytes, stream));
}

bool has_large_clusters(const cublasLtMatmulAlgo_t& algo) {
  std::uint16_t shape = CUBLASLT_CLUSTER_SHAPE_AUTO;
  std::size_t size = 0;
  RING_CUBLAS_CHECK(
      library().algo_config_get(&algo, CUBLASLT_ALGO_CONFIG_CLUSTER_SHAPE_ID, &shape, sizeof shape, &size));
  switch (shape) {
    case CUBLASLT_CLUSTER_SHAPE_AUTO:
    case CUBLASLT_CLUSTER_SHAPE_1x1x1:
    case CUBLASLT_CLUSTER_SHAPE_2x1x1:
    case CUBLASLT_CLUSTER_SHAPE_1x2x1:
    case CUBLASLT_CLUSTER_SHAPE_4x1x1:
    case CUBLASLT_CLUSTER_SHAPE_2x2x1:
    case CUBLASLT_CLUSTER_SHAPE_1x4x1: return false;
    default: return true;
  }
}

// Writes the words in hexadecimal, separated by dots, without trailing zero words.
std::string to_text(const cublasLtMatmulAlgo_t& algo) {
  std::size_t words = std::size(algo.data);
  while (words > 1 && algo.data[words - 1] == 0) --words;
  std::string text;
  for (std::size_t i = 0; i < words; ++i) {
    char digits[18];
    std::snprintf(digits, sizeof digits, i ? ".%llx" : "%llx", static_cast<unsigned long long>(algo.data[i]));
    text += digits;
  }
  return text;
}

bool from_text(const std::string& text, cublasLtMatmulAlgo_t& algo) {
  algo = {};
  const char* at = text.data();
  const char* const end = at + text.size();
  for (std::uint64_t& word : algo.data) {
    const auto [next, error] = std::from_chars(at, end, word, 16);
    if (error != std::errc()) return false;
    if (next == end) return true;
    if (*next != '.') return false;
    at = next + 1;
  }
  return false;
}

}  // namespace ring::cublas
