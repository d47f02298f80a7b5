#pragma once
// Keys and values of the tokens seen so far, for generation.

#include <vector>

#include "autograd/ops.h"
#include "model/config.h"

namespace ring {

// One layer's share: keys and values [batch, capacity, kv_heads, head_dim].
struct LayerCache {
  Tensor keys, values;
  // Copies the rows of each sequence (k, v [N,Hk,D], heads adjacent) behind the `lengths[b]` rows that are there.
  void append(const Tensor& k, const Tensor& v, const Sequences&, const std::vector<std::int32_t>& lengths,
              const Context&);
};

struct KvCache {
  KvCache(const ModelConfig& resolved, std::int64_t batch, std::int64_t capacity,
          const Context&);  // of ctx.precision's type

  std::vector<LayerCache> layers;
  std::vector<std::int32_t> lengths;  // rows in use, per sequence; the decoder advances them
  std::int64_t capacity;
};

}  // namespace ring
