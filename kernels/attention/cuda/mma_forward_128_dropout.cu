#include "kernels/attention/cuda/mma_forward.cuh"

namespace ring::cuda {

template void run_mma_forward<128, true>(const Attention&, const BranchPass&, const Tensor&, const ExecContext&);

}  // namespace ring::cuda
