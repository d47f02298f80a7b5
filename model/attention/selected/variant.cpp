// Blocks selected by content as a variant of attention. The op selects them in each forward; this part lets groups of
// layers share a selection, and keeps it in a cache.
#include <algorithm>
#include <utility>

#include "model/attention/selected/selected_blocks_cache.h"
#include "model/attention_variant.h"
#include "model/patterns.h"

namespace ring {
namespace {

// The cache of a layer that attends to the blocks that an earlier layer of its group has selected.
class SharedSelection final : public VariantCache {
 public:
  explicit SharedSelection(std::vector<std::shared_ptr<VariantCache>> earlier) : earlier_(std::move(earlier)) {}
  bool add_keys(std::size_t b, std::int32_t kv_head, std::int32_t token, std::vector<KeyRun>& runs) const override {
    return std::ranges::any_of(earlier_, [&](const auto& part) { return part->add_keys(b, kv_head, token, runs); });
  }

 private:
  std::vector<std::shared_ptr<VariantCache>> earlier_;  // cache parts of the earlier layer, one of which selects
};

class SelectedBlocksOfLayer final : public AttentionVariant {
 public:
  explicit SelectedBlocksOfLayer(const VariantSetup& s)
      : layer_(s.layer), source_(selection_sources(s.config)[static_cast<std::size_t>(s.layer)]) {}

  Var attend(AttentionLayerCall& call, const std::function<Var()>& attend) const override {
    if (source_ >= 0) call.options.selection = &call.pass.selections[static_cast<std::size_t>(source_)];
    return attend();
  }
  std::shared_ptr<VariantCache> make_cache(const CacheSetup& s) const override {
    if (source_ < 0 || source_ == layer_) return std::make_shared<SelectedBlocksCache>(s);
    return std::make_shared<SharedSelection>(s.before[static_cast<std::size_t>(source_)].variants);
  }

 private:
  // source_: the layer whose selection this layer uses, -1 if the section shares none.
  std::int64_t layer_, source_;
};

}  // namespace

const AttentionVariantKind& selected_variant() {
  static const AttentionVariantKind kind{.make = [](const VariantSetup& s) -> std::unique_ptr<AttentionVariant> {
    const bool by_content = s.pattern.selects() && !learns_blocks(s.settings);
    return by_content ? std::make_unique<SelectedBlocksOfLayer>(s) : nullptr;
  }};
  return kind;
}

}  // namespace ring
