#include "kernels/attention/pools/pooled_attention.h"

namespace ring {

std::int64_t pool_weights_numel(const Pattern& p, std::int64_t kv_heads, std::int64_t dim) {
  std::int64_t numel = 0;
  for (const std::int32_t size : p.pools) numel += kv_heads * (size + dim);
  return numel;
}

std::vector<PoolWeights> pool_weights(const Tensor& flat, const Pattern& p, std::int64_t kv_heads, std::int64_t dim) {
  RING_CHECK(flat.numel() == pool_weights_numel(p, kv_heads, dim), "attention: weights of pools ", describe(flat),
             ", expected ", pool_weights_numel(p, kv_heads, dim), " numbers");
  std::vector<PoolWeights> weights;
  std::int64_t begin = 0;
  const auto next = [&](std::int64_t width) {
    const Tensor t = flat.narrow(0, begin, kv_heads * width).view({kv_heads, width});
    begin += kv_heads * width;
    return t;
  };
  for (const std::int32_t size : p.pools) {
    const Tensor positions = next(size);
    weights.push_back({positions, next(dim)});
  }
  return weights;
}

std::vector<PoolWeights> of_heads(const std::vector<PoolWeights>& all, KvHeads heads) {
  std::vector<PoolWeights> some;
  for (const PoolWeights& w : all)
    some.push_back({w.positions.narrow(0, heads.first, heads.count), w.query.narrow(0, heads.first, heads.count)});
  return some;
}

}  // namespace ring
