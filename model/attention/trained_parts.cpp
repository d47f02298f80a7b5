#include "model/attention/trained_parts.h"

#include "core/check.h"
#include "model/attention/importance.h"
#include "model/attention/pools.h"

namespace ring {

std::span<const TrainedPart> trained_parts() {
  static constexpr TrainedPart kParts[] = {
      {learns_blocks, "an indexer", "select blocks", "pattern: learned", "pattern: content"},
      {learns_pools, "learned pools", "make pools", "pooling: learned", "pooling: mean"},
      {[](const AttentionConfig& c) { return c.pool_gates; }, "pool gates", "weigh pools", "pool_gates: true",
       "pool_gates: false"},
  };
  return kParts;
}

std::string why_not_static_pattern(const AttentionConfig& c, std::int64_t kv_heads) {
  for (const TrainedPart& part : trained_parts())
    if (part.in(c)) return str("has ", part.name, " (", part.setting, ")");
  if (uses_importance(c, kv_heads)) return "keeps blocks by importance";
  if (c.layers_per_selection > 1)
    return str("shares its selection (layers_per_selection: ", c.layers_per_selection, ")");
  return "";
}

}  // namespace ring
