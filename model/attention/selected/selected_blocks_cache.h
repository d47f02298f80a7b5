#pragma once
// The selected blocks of a layer's cache.

#include <memory>

#include "model/attention/selected/selection_cache.h"
#include "model/kv_cache.h"

namespace ring {

class SelectedBlocksCache : public VariantCache {
 public:
  // Creates a selection of the layer's own.
  explicit SelectedBlocksCache(const CacheSetup&);
  // Uses the selection of an earlier layer, which updates it.
  explicit SelectedBlocksCache(std::shared_ptr<const SelectionCache> shared) : selection_(std::move(shared)) {}

  void append(const LayerCache&, const NewTokens&, const Tensor& q) override;
  void prepare(const LayerCache&, const Pattern&, float scale, const NewTokens&) override;
  bool add_keys(std::size_t b, std::int32_t kv_head, std::int32_t token, std::vector<KeyRun>&) const override;

  std::shared_ptr<const SelectionCache> selection() const { return selection_; }

 protected:
  // Returns the function that scores blocks; null if means of queries and keys do (SelectionCache::select()).
  virtual SelectionCache::Scored scorer(const ExecContext&) const { return nullptr; }

 private:
  std::shared_ptr<SelectionCache> own_;  // null if the selection is shared
  std::shared_ptr<const SelectionCache> selection_;
};

}  // namespace ring
