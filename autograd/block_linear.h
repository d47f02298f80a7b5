#pragma once
// A linear layer with a block-diagonal weight: several small layers, each with its own columns of input and output.

#include <cstdint>
#include <vector>

#include "autograd/tape.h"

namespace ring {

// The columns of the output that one block computes.
struct OutputBlock {
  std::int64_t first = 0, count = 0;
};

// Returns y [N,channels] + residual for x [N, blocks * K] and w [sum of the counts, K], whose rows are ordered by
// block. Block i computes y[:, its columns] = x_i w_i^T, where x_i are columns i K .. of x, and w_i are the block's
// rows of w. The other columns of y are 0. residual [N,channels] may be none; it requires that the blocks cover all
// columns.
Var block_linear(Run&, const Var& x, const Var& w, const std::vector<OutputBlock>& blocks, std::int64_t channels,
                 const Var& residual = {});

}  // namespace ring
