#include "kernels/attention/cuda/sm90_forward.cuh"

namespace ring::cuda::sm90 {

template void run_forward<64, 2, true>(const Attention&, const BranchPass&, const Tensor&, const ExecContext&);

}  // namespace ring::cuda::sm90
