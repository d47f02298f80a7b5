#include "kernels/attention/cuda/mma_forward.cuh"

namespace ring::cuda {

template void run_mma_forward<256>(const Attention&, const BranchPass&, const ExecContext&);

}  // namespace ring::cuda
