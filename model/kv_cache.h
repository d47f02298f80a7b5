#pragma once
// Keys and values of the tokens seen so far, for generation.

#include <vector>

#include "autograd/ops.h"
#include "kernels/attention/block_pool.h"
#include "kernels/attention/pools/pooled_attention.h"
#include "model/config.h"
#include "model/index_cache.h"
#include "model/selection_cache.h"

namespace ring {

// The cache of one layer: keys and values [batch, rows, kv_heads, head_dim]. Token t is in row t. If there are fewer
// rows than tokens, the rows after the sinks are a ring buffer of the newest tokens. Rows of pools (Pattern::pools)
// come after those of all tokens.
struct LayerCache {
  struct Pools {
    std::int32_t size, first;  // tokens per pool; cache row of pool 0
  };

  Tensor keys, values;
  std::int64_t sinks = 0;
  std::shared_ptr<SelectionCache> selection{};  // null unless the layer's blocks are selected by content
  bool shares = false;                          // true if an earlier layer owns and updates `selection`
  std::shared_ptr<IndexCache> index{};          // null unless an indexer scores the layer's blocks
  std::vector<Pools> pools{};

  bool selects() const { return selection && !shares; }

  std::int64_t rows() const { return pools.empty() ? keys.dim(1) : pools[0].first; }  // number of rows for tokens
  std::int64_t row_of(std::int64_t token) const {
    return token < rows() ? token : sinks + (token - sinks) % (rows() - sinks);
  }
  // Appends the new tokens (k, v [N,Hk,D], heads adjacent) of each sequence after its `lengths[b]` tokens. Skips tokens
  // that the ring would overwrite. Computes the pools that become complete, as weighted sums if there are PoolWeights,
  // else as means.
  void append(const Tensor& k, const Tensor& v, const Sequences&, const std::vector<std::int32_t>& lengths,
              const std::vector<PoolWeights>&, const ExecContext&) const;
  // Sets `rows` and `starts` of the kernel call to the cache rows that the newest query of each sequence, token
  // tokens[b], attends over.
  void set_key_rows(const Pattern&, const std::vector<std::int32_t>& tokens, AttentionDecode&) const;

 private:
  void compute_pools(const Sequences&, const std::vector<std::int32_t>& lengths, const std::vector<PoolWeights>&,
                     const ExecContext&) const;
  void compute_pools(const Pools&, const PoolWeights*, const std::vector<PoolSegment>&, const ExecContext&) const;
};

struct KvCache {
  // Allocates keys and values in the activation type of the context's precision.
  KvCache(const ModelConfig& resolved, std::int64_t batch, std::int64_t capacity, const ExecContext&);

  // Throws Error if a sequence would exceed the capacity.
  void check_room(const Sequences&) const;

  std::vector<LayerCache> layers;
  std::vector<std::int32_t> lengths;  // tokens seen, per sequence; the decoder advances them
  std::int64_t capacity;              // maximum tokens per sequence
};

}  // namespace ring
