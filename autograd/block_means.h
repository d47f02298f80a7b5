#pragma once
// Means over the blocks of documents, one document's blocks behind the other's, as the rows of a selection are.

#include <vector>

#include "autograd/context_exchange.h"
#include "kernels/attention/block_pool.h"
#include "kernels/attention/block_select.h"

namespace ring {

// The documents' rows in blocks of the pattern.
std::vector<PooledRows> block_rows(const Pattern&, const std::vector<Span>&);

// x [N,C] -> f32 [blocks,C].
Tensor block_means(const Tensor& x, std::vector<PooledRows> rows, std::int64_t blocks, std::int32_t block,
                   const ExecContext&);
Tensor block_means(const Tensor& x, const std::vector<Span>& documents, const Pattern&, const ExecContext&);
// For documents that are cut among ranks: on each rank those of all, with the same bits. x: this rank's rows.
Tensor block_means(const Tensor& x, const ContextShards&, const Pattern&, ContextExchange&, const ExecContext&);
// x [N,H,D], several of them: f32 [blocks,kv_heads,D] of each, summed over the heads of a group; one message for all.
std::vector<Tensor> block_means(const std::vector<Tensor>& x, std::int64_t kv_heads, const ContextShards&,
                                const Pattern&, ContextExchange&, const ExecContext&);

// The blocks of each document that this rank has rows of, with their places in means and selections. None stands in
// two.
std::vector<SelectedRows> held_blocks(const ContextShards&, const Pattern&);

}  // namespace ring
