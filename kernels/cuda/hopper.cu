#include "kernels/cuda/hopper.h"

#include "kernels/cuda/launch.h"

namespace ring::cuda {

bool is_hopper(const ExecContext& ctx) {
  return device_attribute(ctx, cudaDevAttrComputeCapabilityMajor) == 9 &&
         device_attribute(ctx, cudaDevAttrComputeCapabilityMinor) == 0;
}

std::int64_t num_multiprocessors(const ExecContext& ctx) {
  return device_attribute(ctx, cudaDevAttrMultiProcessorCount);
}

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
