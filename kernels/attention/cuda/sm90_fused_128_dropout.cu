#include "kernels/attention/cuda/sm90_fused.cuh"

namespace ring::cuda::sm90 {

template void run_fused<128, true>(const AttentionBackward&, const BranchPass&, const RowStatistics&,
                                   const ExecContext&);

}  // namespace ring::cuda::sm90
