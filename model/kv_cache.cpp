#include "model/kv_cache.h"

namespace ring {

void LayerCache::append(const Tensor& k, const Tensor& v, const Sequences& seqs,
                        const std::vector<std::int32_t>& lengths, const Context& ctx) {
  const std::size_t row = static_cast<std::size_t>(k.dim(1) * k.dim(2)) * size_of(k.dtype());
  RING_CHECK(k.stride(1) == k.dim(2) && v.stride(1) == v.dim(2), "a cache takes rows whose heads are adjacent");
  const std::pair<Tensor, Tensor> copies[] = {{keys, k}, {values, v}};
  for (std::size_t b = 0; b + 1 < seqs.offsets.size(); ++b) {
    const std::int64_t count = seqs.offsets[b + 1] - seqs.offsets[b];
    RING_CHECK(lengths[b] + count <= keys.dim(1), "sequence ", b, " holds ", lengths[b], " tokens and gets ", count,
               " more, the cache has room for ", keys.dim(1));
    for (const auto& [to, from] : copies)
      for (std::int64_t i = 0; i < count; ++i)
        ctx.stream.impl().copy(to.narrow(0, static_cast<std::int64_t>(b), 1).narrow(1, lengths[b] + i, 1).raw(),
                               from.narrow(0, seqs.offsets[b] + i, 1).raw(), row);
  }
}

KvCache::KvCache(const ModelConfig& c, std::int64_t batch, std::int64_t rows, const Context& ctx)
    : lengths(static_cast<std::size_t>(batch), 0), capacity(rows) {
  const DType type = activation_type(ctx.precision);
  const Shape shape{batch, rows, c.kv_heads, c.head_dim};
  for (std::int64_t i = 0; i < c.layers; ++i) layers.push_back({ctx.empty(shape, type), ctx.empty(shape, type)});
}

}  // namespace ring
