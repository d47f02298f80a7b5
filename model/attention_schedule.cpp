#include "model/attention_schedule.h"

#include <algorithm>

namespace ring {
namespace {

template <class Model, class Fn>
void for_rules(Model& c, const Fn& fn) {
  for (auto& rule : c.attention.rules) fn(rule);
  for (auto& entry : c.attention_layers)
    for (auto& rule : entry.attention.rules) fn(rule);
}

}  // namespace

ModelConfig with_attention_at(ModelConfig c, std::int64_t tokens) {
  for_rules(c, [&](BlockRuleConfig& r) {
    r.keep = value_at(r.keeps, tokens, r.keep);
    r.keeps.clear();
  });
  return c;
}

std::vector<std::int64_t> attention_change_points(const ModelConfig& c) {
  std::vector<std::int64_t> all;
  for_rules(c, [&](const BlockRuleConfig& r) {
    for (const TokenChange& change : r.keeps)
      if (change.tokens > 0) all.push_back(change.tokens);
  });
  std::ranges::sort(all);
  all.erase(std::ranges::unique(all).begin(), all.end());
  return all;
}

std::size_t attention_stage(const std::vector<std::int64_t>& changes, std::int64_t tokens) {
  return static_cast<std::size_t>(std::ranges::upper_bound(changes, tokens) - changes.begin());
}

}  // namespace ring
