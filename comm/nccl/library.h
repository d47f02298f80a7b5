#pragma once
// NCCL's functions, from a library that is loaded at the first call, and NCCL's errors as ring::Error.

#ifdef RING_WITH_NCCL

#include <nccl.h>

#include <string>

namespace ring::nccl {

struct Library {
  decltype(&ncclGetVersion) version;
  decltype(&ncclGetUniqueId) unique_id;
  decltype(&ncclGetErrorString) error_string;
  decltype(&ncclGetLastError) last_error;
  decltype(&ncclCommInitRankConfig) init;
  decltype(&ncclCommGetAsyncError) async_error;
  decltype(&ncclCommFinalize) finalize;
  decltype(&ncclCommDestroy) destroy;
  decltype(&ncclCommAbort) abort;
  decltype(&ncclGroupStart) group_start;
  decltype(&ncclGroupEnd) group_end;
  decltype(&ncclAllReduce) all_reduce;
  decltype(&ncclAllGather) all_gather;
  decltype(&ncclReduceScatter) reduce_scatter;
  decltype(&ncclReduce) reduce;
  decltype(&ncclBroadcast) broadcast;
  decltype(&ncclSend) send;
  decltype(&ncclRecv) recv;
};

// Returns NCCL's functions. Throws Error if the library is missing. Turns NVLink multicast off (NCCL_NVLS_ENABLE=0)
// unless the environment sets it; call it before other threads read the environment.
const Library& library();

// Returns "unhandled CUDA error (details of the library)". `comm` may be null.
std::string describe(ncclResult_t, ncclComm_t comm);

}  // namespace ring::nccl

#endif
