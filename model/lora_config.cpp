#include "model/lora_config.h"

#include <algorithm>
#include <utility>

#include "core/fields.h"
#include "core/joined.h"

namespace ring {

void LoraConfig::fields(Fields& f) {
  f("rank", rank, "rank of the adapters; 0 = no adapters, all weights are trained", in_range(0, 1 << 16),
    docs_page("finetune.md#lora"));
  f("alpha", alpha, "outputs of adapters are multiplied by alpha / rank; 0 = 2 x rank", in_range(0, 1e6));
  f("targets", targets, "linear layers with an adapter, such as [wq, wv]; all = every one in the blocks", non_empty(),
    at_most_items(64));
  f("dropout", dropout, "dropout rate of the adapters' inputs", in_range(0, 0.95));
}

void LoraConfig::validate(std::vector<SettingProblem>& errors) const {
  const LoraConfig unset;
  for (const auto& [key, given] :
       {std::pair{"alpha", alpha != unset.alpha}, {"targets", targets != unset.targets}, {"dropout", dropout != 0}})
    if (rank == 0 && given)
      errors.push_back(unused_setting(str(key, ": has no effect with rank: 0, which makes no adapters. Set the rank, ",
                                          "such as 16, or leave ", key, " out")));
}

bool LoraConfig::adapts(const std::string& name) const {
  return rank > 0 && std::ranges::any_of(targets, [&](const std::string& t) { return t == kAllLinears || t == name; });
}

void check_targets(const LoraConfig& c, const std::vector<std::string>& names, std::vector<SettingProblem>& errors) {
  for (std::size_t i = 0; i < c.targets.size(); ++i)
    if (c.targets[i] != kAllLinears && std::ranges::count(names, c.targets[i]) == 0)
      errors.push_back(str("lora.targets[", i, "]: this model has no linear layer '", c.targets[i], "'. It has ",
                           joined(names, ", "), "; ", kAllLinears, " selects every one"));
}

}  // namespace ring
