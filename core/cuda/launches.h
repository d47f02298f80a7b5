#pragma once
// The log of the newest launches of this process. CUDA reports a failed kernel only at some later call, so the log
// names the kernels that may have failed. Code that launches a kernel need not log it: the linker sends each launch
// through wrap_launch.cpp.

#include <cuda_runtime_api.h>

#include <cstdint>
#include <string>

namespace ring::cuda {

void log_launch(cudaStream_t, const void* kernel);      // kernel: its host function or its cudaKernel_t
void log_library_call(cudaStream_t, const char* name);  // name: a literal, since a library's kernels are unknown
std::uint64_t launch_count();                           // number of launches so far, over all streams
// Records that the stream's launches among the process's first `count` launches have ended without an error.
void log_launches_ended(cudaStream_t, std::uint64_t count);
// Returns LaunchLog::describe_unfinished() of this process's launches.
std::string describe_unfinished_launches();

// Throws DeviceFailure, which names the unfinished launches, if a kernel of this process has failed. Call it when a
// library reports an error.
void check_device();

}  // namespace ring::cuda
