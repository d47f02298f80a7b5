#pragma once
// Settings of low-rank adapters (LoRA: Hu et al. 2021).

#include <cstdint>
#include <string>
#include <vector>

#include "core/setting_problem.h"

namespace ring {

class Fields;

inline constexpr const char* kAllLinears = "all";  // in LoraConfig::targets: every linear layer of the blocks

struct LoraConfig {
  std::int64_t rank = 0;  // 0 means no adapters
  double alpha = 0;       // 0 means 2 rank
  std::vector<std::string> targets = {kAllLinears};
  double dropout = 0;
  bool operator==(const LoraConfig&) const = default;
  void fields(Fields&);
  void validate(std::vector<SettingProblem>& errors) const;

  // Returns true if linear layers with this name, such as "wq", have an adapter.
  bool adapts(const std::string& name) const;
  // Returns the scale of an adapter's output. Requires that alpha has its final value (ModelConfig::resolved).
  double scale() const { return alpha / static_cast<double>(rank); }
};

// Adds a problem for each target that is not in `names`, the names of the model's linear layers.
void check_targets(const LoraConfig&, const std::vector<std::string>& names, std::vector<SettingProblem>& errors);

}  // namespace ring
