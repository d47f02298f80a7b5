#include "kernels/attention/cuda/mma_backward.cuh"

namespace ring::cuda {

template void run_mma_backward<64, false>(const AttentionBackward&, const BranchPass&, Gradient, const RowStatistics&,
                                          const ExecContext&);

}  // namespace ring::cuda
