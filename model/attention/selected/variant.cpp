// Blocks selected by content as a variant of attention. The op selects them in each forward; this part lets groups of
// layers share a selection, and keeps it in a cache.
#include "model/attention/selected/selected_blocks_cache.h"
#include "model/attention_variant.h"
#include "model/patterns.h"

namespace ring {
namespace {

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
    for (const auto& variant : s.before[static_cast<std::size_t>(source_)].variants)
      if (const auto* cache = dynamic_cast<const SelectedBlocksCache*>(variant.get()))
        return std::make_shared<SelectedBlocksCache>(cache->selection());
    fail("layer ", layer_, " shares the selection of layer ", source_, ", whose cache has none");
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
