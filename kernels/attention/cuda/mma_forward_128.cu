#include "kernels/attention/cuda/mma_forward.cuh"

namespace ring::cuda {

template void run_mma_forward<128>(const Attention&, const BranchPass&, const ExecContext&);

}  // namespace ring::cuda
