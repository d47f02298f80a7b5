// Logs every kernel launch of this program. The linker (ld --wrap) replaces the runtime's launch functions by these, so
// no launch is missed.

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

// Since CUDA 13, nvcc turns <<<>>> into a call of this function, which takes a kernel handle instead of the host
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
