#pragma once
// The newest launches of this process. A kernel's failure shows at some later call: the log says which kernels it may
// come from. Kernels are logged by themselves: the linker sends every launch to wrap_launch.cpp first.

#include <cuda_runtime_api.h>

#include <cstdint>
#include <string>

namespace ring::cuda {

void log_launch(cudaStream_t, const void* kernel);      // kernel: its host function or its cudaKernel_t
void log_library_call(cudaStream_t, const char* name);  // name: a literal; the library's kernels are not known
std::uint64_t launch_count();                           // of all streams, so far
// Records that those of the stream's launches that are among the process's first `count` have ended without an error.
void log_launches_ended(cudaStream_t, std::uint64_t count);
std::string describe_unfinished_launches();  // LaunchLog::describe_unfinished()

// Throws DeviceFailure, which names these launches, if a kernel of this process has failed. Call it when a library
// reports an error.
void check_device();

}  // namespace ring::cuda
