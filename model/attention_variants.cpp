#include "model/attention_variant.h"

namespace ring {

// Each variant is defined in its own folder, e.g. model/attention/pools.
const AttentionVariantKind& pools_variant();
const AttentionVariantKind& selected_variant();
const AttentionVariantKind& learned_variant();
const AttentionVariantKind& importance_variant();

std::vector<const AttentionVariantKind*>& attention_variants() {
  static std::vector<const AttentionVariantKind*> kinds = {&pools_variant(), &selected_variant(), &learned_variant(),
                                                           &importance_variant()};
  return kinds;
}

}  // namespace ring
