#include "kernels/attention/cuda/sm90_forward.cuh"

namespace ring::cuda::sm90 {

template void run_forward<128, 2, false>(const Attention&, const BranchPass&, const Tensor&, const ExecContext&);

}  // namespace ring::cuda::sm90
