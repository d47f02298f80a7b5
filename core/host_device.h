#pragma once
// RING_HOST_DEVICE marks functions that both hosts and devices call, in headers that a host compiler reads too.

#ifdef __CUDACC__
#define RING_HOST_DEVICE __host__ __device__
#else
#define RING_HOST_DEVICE
#endif
