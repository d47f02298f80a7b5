#pragma once
// RING_HOST_DEVICE marks functions that run on hosts and GPUs. It is empty when a host compiler reads the header.

#ifdef __CUDACC__
#define RING_HOST_DEVICE __host__ __device__
#else
#define RING_HOST_DEVICE
#endif
