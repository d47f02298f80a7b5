#include "kernels/cuda/hopper.h"

#include "core/cuda/check.h"

namespace ring::cuda {
namespace {

int attribute(cudaDeviceAttr which, const ExecContext& ctx) {
  int value = 0;
  RING_CUDA_CHECK(cudaDeviceGetAttribute(&value, which, ctx.stream.device().index));
  return value;
}

}  // namespace

bool is_hopper(const ExecContext& ctx) {
  return attribute(cudaDevAttrComputeCapabilityMajor, ctx) == 9 &&
         attribute(cudaDevAttrComputeCapabilityMinor, ctx) == 0;
}

std::int64_t num_multiprocessors(const ExecContext& ctx) { return attribute(cudaDevAttrMultiProcessorCount, ctx); }

decltype(&cuTensorMapEncodeTiled) tensor_map_encoder() {
  using Encode = decltype(&cuTensorMapEncodeTiled);
  static const Encode found = [] {
    void* f = nullptr;
    cudaDriverEntryPointQueryResult result{};
    const cudaError_t error =
        cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &f, 12000, cudaEnableDefault, &result);
    if (error != cudaSuccess) static_cast<void>(cudaGetLastError());
    return error == cudaSuccess && result == cudaDriverEntryPointSuccess ? reinterpret_cast<Encode>(f) : nullptr;
  }();
  return found;
}

}  // namespace ring::cuda
