// Binds the fields of the attention settings. The kinds of attention document and check them.
#include <algorithm>

#include "core/check.h"
#include "core/fields.h"
#include "core/setting_problem.h"
#include "kernels/attention/learned/block_index.h"
#include "model/attention/kinds.h"

namespace ring {
namespace {

constexpr std::int64_t kMaxTokens = 1 << 30;
constexpr std::size_t kMaxBranches = 64, kMaxPools = 8;
constexpr std::int64_t kMaxShared = 1 << 16;  // maximum layers per selection

std::string text_of(const config::Node& value) {
  if (value.scalar()) return config::to_text(value.get());
  std::string text;
  for (std::size_t i = 0; i < value.size(); ++i) {
    const config::Node element = value.element(i);
    if (!element.scalar()) return str("a list of ", value.size());
    text += str(i ? ", " : "", config::to_text(element.get()));
  }
  return "[" + text + "]";
}

}  // namespace

void AttentionConfig::fields(Fields& f) {
  Choices<std::string> kinds;
  for (const AttentionKind& k : attention_kinds()) kinds.names.emplace_back(k.name, k.name);
  f("kind", kind, "which keys a token attends to: " + kinds_help(), kinds);
  f("window", window, setting_help("window"), in_range(0, kMaxTokens));
  f("sinks", sinks, setting_help("sinks"), in_range(0, kMaxTokens));
  f("segments", segments, setting_help("segments"), in_range(1, kMaxTokens), at_most_items(kMaxBranches));
  f("rates", rates, setting_help("rates"), in_range(1, kMaxTokens), at_most_items(kMaxBranches));
  f("dedup", dedup, setting_help("dedup"));
  f("block", block, setting_help("block"), in_range(0, 128));
  f("rules", rules, setting_help("rules"), at_most_items(64));
  f("heads", heads, setting_help("heads"), in_range(0, 63), at_most_items(1 << 16));
  f("layers_per_selection", layers_per_selection, setting_help("layers_per_selection"), in_range(1, kMaxShared));
  f("pools", pools, setting_help("pools"), in_range(2, kMaxTokens), at_most_items(kMaxPools));
  f("pooling", pooling, setting_help("pooling"),
    choices<Pooling>({{"mean", Pooling::mean}, {"learned", Pooling::learned}}));
  f("pool_gates", pool_gates, setting_help("pool_gates"));
  f("index_heads", index_heads, setting_help("index_heads"), in_range(1, kMaxIndexHeads));
  f("index_head_dim", index_head_dim, setting_help("index_head_dim"), in_range(1, kMaxIndexDim));
  f("index_distances", index_distances, setting_help("index_distances"), in_range(0, kMaxDistanceBuckets));
  f("index_loss", index_loss, setting_help("index_loss"), in_range(0, 1e6));
  f("index_warmup_steps", index_warmup_steps, setting_help("index_warmup_steps"), in_range(0, 1 << 30));
}

void AttentionConfig::validate(std::vector<SettingProblem>& errors) const {
  const AttentionKind& own = attention_kind(kind);
  for (const auto& [key, value] : given_settings(*this))
    if (!own.reads_setting(key))
      errors.push_back(
          foreign_setting_problem("kind", key, foreign_setting(key, value, kinds_that_read(key), "kind: " + kind)));
  if (own.validate) own.validate(*this, errors);
}

std::vector<std::pair<std::string, std::string>> given_settings(AttentionConfig c) {
  AttentionConfig plain;
  const config::Node mine = bind_config(c), defaults = bind_config(plain);
  std::vector<std::pair<std::string, std::string>> given;
  for (std::size_t i = 0; i < mine.fields.size(); ++i)
    if (const std::string text = text_of(mine.fields[i].node);
        mine.fields[i].name != "kind" && text != text_of(defaults.fields[i].node))
      given.emplace_back(mine.fields[i].name, text);
  return given;
}

SettingProblem foreign_setting_problem(const std::string& cause, const std::string& key, const std::string& text) {
  AttentionConfig plain;
  const config::Node defaults = bind_config(plain);
  const auto field = std::ranges::find(defaults.fields, key, &config::Field::name);
  RING_CHECK(field != defaults.fields.end(), "model.attention.", key, " is not a setting");
  return inherited_setting(key, cause, text_of(field->node), text);
}

void LayerAttentionConfig::fields(Fields& f) {
  f("layers", layers, "layers, counted from 0: numbers and ranges (0,4-7), every 4 from 3, or both", non_empty());
  f("attention", attention, "attention of these layers, instead of model.attention");
}

}  // namespace ring
