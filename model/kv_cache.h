#pragma once
// Keys and values of the tokens seen so far, for generation.

#include <vector>

#include "autograd/ops.h"
#include "kernels/attention/block_pool.h"
#include "kernels/attention/pooled_attention.h"
#include "model/config.h"
#include "model/index_cache.h"
#include "model/selection_cache.h"

namespace ring {

// One layer's share: keys and values [batch, rows, kv_heads, head_dim]. Token t lies in row t; where there are fewer
// rows than tokens, those behind the sinks are a ring of the newest. Rows of pools (Pattern::pools) come behind those
// of all tokens.
struct LayerCache {
  struct Pools {
    std::int32_t size, first;  // first: the row of pool 0
  };

  Tensor keys, values;
  std::int64_t sinks = 0;
  std::shared_ptr<SelectionCache> selection{};  // of a layer whose blocks are selected by content, else null
  bool shares = false;                          // it is that of a layer before, which selects
  std::shared_ptr<IndexCache> index{};          // of one whose blocks an indexer scores, else null
  std::vector<Pools> pools{};

  bool selects() const { return selection && !shares; }

  std::int64_t rows() const { return pools.empty() ? keys.dim(1) : pools[0].first; }  // of tokens
  std::int64_t row_of(std::int64_t token) const {
    return token < rows() ? token : sinks + (token - sinks) % (rows() - sinks);
  }
  // Copies the tokens of each sequence (k, v [N,Hk,D], heads adjacent) behind the `lengths[b]` that were seen before:
  // those that the rows keep. Pools that they complete are made, by weights or as means.
  void append(const Tensor& k, const Tensor& v, const Sequences&, const std::vector<std::int32_t>& lengths,
              const std::vector<PoolWeights>&, const ExecContext&) const;
  // Sets the rows that a query at token tokens[b] of each sequence, its newest, attends over.
  void choose_rows(const Pattern&, const std::vector<std::int32_t>& tokens, AttentionDecode&) const;

 private:
  void pool(const Sequences&, const std::vector<std::int32_t>& lengths, const std::vector<PoolWeights>&,
            const ExecContext&) const;
  void pool(const Pools&, const PoolWeights*, const std::vector<PooledRows>&, const ExecContext&) const;
};

struct KvCache {
  KvCache(const ModelConfig& resolved, std::int64_t batch, std::int64_t capacity,
          const ExecContext&);  // of ctx.precision's type

  // Error: a sequence would outgrow the capacity.
  void check_room(const Sequences&) const;

  std::vector<LayerCache> layers;
  std::vector<std::int32_t> lengths;  // tokens seen, per sequence; the decoder advances them
  std::int64_t capacity;              // most of them
};

}  // namespace ring
