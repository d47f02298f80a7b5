#include "kernels/attention/cuda/sm90_backward.cuh"

namespace ring::cuda::sm90 {

template void run_backward<Stationary::kv, 64, true>(const AttentionBackward&, const BranchPass&, const RowStatistics&,
                                                     const ExecContext&);

}  // namespace ring::cuda::sm90
