#pragma once
// Muon (Jordan 2024, kellerjordan.github.io/posts/muon): the momentum of a hidden matrix, made nearly orthogonal, is
// its update. Scaled by 0.2 sqrt(max(rows, columns)), which gives it the size of AdamW's (Liu et al. 2025, "Muon is
// scalable for LLM training", eq. 4), so that learning rates and weight decay of AdamW serve. AdamW updates tables and
// vectors.

#include "optim/update_rule.h"

namespace ring {

OptimizerKind muon();

// Newton-Schulz iterations of x [B,R,C], whose matrices have norms of at most 1: every singular value s becomes
// 3.4445 s - 4.7750 s^3 + 2.0315 s^5, again and again, until it is between 0.7 and 1.2. May overwrite x.
Tensor newton_schulz(Tensor x, std::int64_t iterations, const ExecContext&);
// FLOPs of so many iterations for one matrix.
double newton_schulz_flops(std::int64_t rows, std::int64_t columns, std::int64_t iterations);

// Bytes of matrices that are computed at a time, with what their products need beside them; at least one matrix is.
inline constexpr std::int64_t kMuonWorkBytes = std::int64_t{256} << 20;

}  // namespace ring
