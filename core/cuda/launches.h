#pragma once
// The newest launches of this process. CUDA reports the failure of a kernel at some later call: the log names the
// kernels that may have failed. Kernel launches need no call: the linker sends each one through wrap_launch.cpp.

#include <cuda_runtime_api.h>

#include <cstdint>
#include <string>

namespace ring::cuda {

void log_launch(cudaStream_t, const void* kernel);      // kernel: its host function or its cudaKernel_t
void log_library_call(cudaStream_t, const char* name);  // name: a literal, since a library's kernels are unknown
std::uint64_t launch_count();                           // number of launches so far, over all streams
// Records that all of the process's first `count` launches that are on this stream have ended without an error.
void log_launches_ended(cudaStream_t, std::uint64_t count);
// Returns LaunchLog::describe_unfinished() of this process's launches.
std::string describe_unfinished_launches();

// Throws DeviceFailure, which names the unfinished launches, if a kernel of this process has failed. Call it when a
// library reports an error.
void check_device();

}  // namespace ring::cuda
