#include "kernels/attention/cuda/sm90_backward.cuh"

namespace ring::cuda::sm90 {

template void run_backward<Owner::keys, 128>(const AttentionBackward&, const Pass&, const RowStatistics&,
                                             const Context&);

}  // namespace ring::cuda::sm90
