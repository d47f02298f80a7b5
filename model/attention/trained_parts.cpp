#include "model/attention/trained_parts.h"

#include "core/check.h"
#include "model/attention/block_patterns.h"
#include "model/attention/variant_settings.h"

namespace ring {

std::vector<TrainedPart> trained_parts() {
  std::vector<TrainedPart> all;
  const auto add = [&](const auto& owners) {
    for (const auto& owner : owners) all.insert(all.end(), owner.trained_parts.begin(), owner.trained_parts.end());
  };
  add(block_patterns());
  add(variant_settings());
  return all;
}

std::string why_not_static_pattern(const AttentionConfig& c, std::int64_t kv_heads) {
  for (const TrainedPart& part : trained_parts())
    if (part.in(c)) return str("has ", part.name, " (", part.setting, ")");
  for (std::int64_t h = 0; c.kind == "block_sparse" && h < kv_heads; ++h)
    if (const BlockPatternKind& p = block_pattern_of(rule_of_head(c, h)); p.chooser == BlockChooser::masses)
      return "keeps blocks by " + p.name;
  if (c.layers_per_selection > 1)
    return str("shares its selection (layers_per_selection: ", c.layers_per_selection, ")");
  return "";
}

}  // namespace ring
