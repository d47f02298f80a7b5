#pragma once
// Muon (Jordan 2024, kellerjordan.github.io/posts/muon): a hidden matrix is updated with its nearly orthogonalized
// momentum, scaled by 0.2 sqrt(max(rows, columns)). This gives the update the size of AdamW's (Liu et al. 2025, "Muon
// is scalable for LLM training", eq. 4), so that AdamW's learning rates and weight decay can be used. AdamW updates
// tables and vectors.

#include "optim/update_rule.h"

namespace ring {

OptimizerKind muon();

// Runs Newton-Schulz iterations on x [B,R,C], matrices with norms of at most 1. Each iteration maps every singular
// value s to 3.4445 s - 4.7750 s^3 + 2.0315 s^5; after enough iterations, all are between 0.7 and 1.2. May overwrite x.
Tensor newton_schulz(Tensor x, std::int64_t iterations, const ExecContext&);
// Returns the FLOPs of the iterations for one matrix.
double newton_schulz_flops(std::int64_t rows, std::int64_t columns, std::int64_t iterations);

// Upper bound on the bytes of the matrices updated at a time, with their GEMM workspace; at least one matrix is
// processed.
inline constexpr std::int64_t kMuonWorkBytes = std::int64_t{256} << 20;

}  // namespace ring
