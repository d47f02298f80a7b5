#pragma once
// NCCL's functions, from the library that is loaded at the first call, and its failures as ring::Error.

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

// Error: it is not there. Turns NVLink multicast off (NCCL_NVLS_ENABLE=0) unless the environment says otherwise; call
// it before other threads read the environment.
const Library& library();

// "unhandled CUDA error (what the library adds)"; `comm` may be null.
std::string describe(ncclResult_t, ncclComm_t comm);

}  // namespace ring::nccl

#endif
