#include "core/cuda/check.h"

#include <algorithm>
#include <array>

#include "core/cuda/launches.h"
#include "core/device_failure.h"

namespace ring::cuda {
namespace {

// Returns true for kernel errors, after which every later call of this process fails (CUDA Runtime API, cudaError_t).
bool is_device_failure(cudaError_t error) {
  constexpr std::array kFailures = {cudaErrorLaunchFailure,      cudaErrorIllegalAddress,      cudaErrorLaunchTimeout,
                                    cudaErrorIllegalInstruction, cudaErrorMisalignedAddress,   cudaErrorInvalidPc,
                                    cudaErrorHardwareStackError, cudaErrorInvalidAddressSpace, cudaErrorAssert,
                                    cudaErrorECCUncorrectable};
  return std::ranges::find(kFailures, error) != kFailures.end();
}

constexpr const char* kRemedy =
    "Run the same command again to resume; docs/when_it_fails.md, \"A GPU fails\", explains how to find the kernel";

}  // namespace

// Throws DeviceFailure, which names the kernels that may have failed, if a kernel failed; otherwise throws Error.
void fail_call(cudaError_t error, const char* call, const char* file, int line) {
  cudaGetLastError();
  const std::string text = str("CUDA: ", cudaGetErrorString(error), " (", cudaGetErrorName(error), ") in ", call, " [",
                               file, ":", line, "]");
  if (!is_device_failure(error)) fail(text);
  const std::string launches = describe_unfinished_launches();
  throw DeviceFailure(str(text, launches.empty() ? "" : ". ", launches, ". ", kRemedy));
}

void check_device() {
  use_stream_device();
  // Has no effect, but like every call returns the error of a failed kernel.
  const cudaError_t error = cudaFree(nullptr);
  if (is_device_failure(error)) fail_call(error, "a library", __FILE__, __LINE__);
}

}  // namespace ring::cuda
