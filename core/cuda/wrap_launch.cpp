// Logs every launch of this program's kernels. The linker replaces the runtime's functions by these (ld, --wrap), so
// that no place that launches a kernel can be forgotten.

#include "core/cuda/launches.h"

// NOLINTBEGIN(bugprone-reserved-identifier): the linker chose the names.
extern "C" {

cudaError_t __real_cudaLaunchKernelExC(const cudaLaunchConfig_t* config, const void* kernel, void** arguments);
cudaError_t __wrap_cudaLaunchKernelExC(const cudaLaunchConfig_t* config, const void* kernel, void** arguments) {
  ring::cuda::log_launch(config->stream, kernel);
  return __real_cudaLaunchKernelExC(config, kernel, arguments);
}

cudaError_t __real_cudaLaunchKernel(const void* kernel, dim3 grid, dim3 block, void** arguments, std::size_t shared,
                                    cudaStream_t stream);
cudaError_t __wrap_cudaLaunchKernel(const void* kernel, dim3 grid, dim3 block, void** arguments, std::size_t shared,
                                    cudaStream_t stream) {
  ring::cuda::log_launch(stream, kernel);
  return __real_cudaLaunchKernel(kernel, grid, block, arguments, shared, stream);
}

// What nvcc makes of <<<>>> since CUDA 13. The runtime's functions for kernels take a handle in place of the host
// function.
#if CUDART_VERSION >= 13000
cudaError_t __real___cudaLaunchKernel(cudaKernel_t kernel, dim3 grid, dim3 block, void** arguments, std::size_t shared,
                                      cudaStream_t stream);
cudaError_t __wrap___cudaLaunchKernel(cudaKernel_t kernel, dim3 grid, dim3 block, void** arguments, std::size_t shared,
                                      cudaStream_t stream) {
  ring::cuda::log_launch(stream, kernel);
  return __real___cudaLaunchKernel(kernel, grid, block, arguments, shared, stream);
}
#endif

}  // extern "C"
// NOLINTEND(bugprone-reserved-identifier)
