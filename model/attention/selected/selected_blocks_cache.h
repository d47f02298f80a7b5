#pragma once
// The selected blocks of a layer's cache.

#include <vector>

#include "model/attention/selected/selection_cache.h"
#include "model/kv_cache.h"

namespace ring {

class SelectedBlocksCache : public VariantCache {
 public:
  explicit SelectedBlocksCache(const CacheSetup& s)
      : selection_(s.pattern, s.batch, s.capacity, s.heads, s.kv_heads, s.head_dim, s.ctx) {}

  void append(const LayerCache&, const NewTokens&, const Tensor& q) override;
  void prepare(const LayerCache&, const Pattern&, float scale, const NewTokens&) override;
  bool add_keys(std::size_t b, std::int32_t kv_head, std::int32_t token, std::vector<KeyRun>&) const override;

 protected:
  // Returns the function that scores blocks; null to score by means of queries and keys (SelectionCache::select()).
  virtual SelectionCache::Scored scorer(const ExecContext&) const { return nullptr; }

 private:
  SelectionCache selection_;
};

}  // namespace ring
