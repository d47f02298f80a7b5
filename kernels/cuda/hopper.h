#pragma once
// Device and driver queries for the Hopper kernels (sm_90a).

#include <cuda.h>

#include "kernels/kernel.h"

namespace ring::cuda {

bool is_hopper(const ExecContext&);
std::int64_t num_multiprocessors(const ExecContext&);

// Returns the driver's encoder of TMA descriptors; null if it has none.
decltype(&cuTensorMapEncodeTiled) tensor_map_encoder();

}  // namespace ring::cuda
