#include "model/patterns.h"

#include <map>
#include <memory>

#include "core/checked.h"
#include "kernels/attention/blocks.h"
#include "model/attention/block_file.h"
#include "model/layer_names.h"

namespace ring {
namespace {

BlockRule rule_of(const BlockRuleConfig& c) {
  BlockRule r;
  switch (c.pattern) {
    case BlockChoice::local_global: r.kind = BlockRuleKind::local_global; break;
    case BlockChoice::strided: r.kind = BlockRuleKind::strided; break;
    case BlockChoice::hierarchical: r.kind = BlockRuleKind::hierarchical; break;
    case BlockChoice::random: r.kind = BlockRuleKind::random; break;
    case BlockChoice::file: break;  // the file's rules take its place
  }
  r.local = narrow<std::int32_t>(c.local);
  r.first = narrow<std::int32_t>(c.first);
  r.every = narrow<std::int32_t>(c.every);
  r.threshold = random_threshold(c.density);
  r.seed = c.seed;
  return r;
}

std::shared_ptr<const BlockPattern> blocks_of(const AttentionConfig& c, const ModelConfig& model) {
  if (c.kind != AttentionKind::block_sparse) return nullptr;
  std::vector<BlockRule> rules;
  std::vector<std::string> files;
  for (const BlockRuleConfig& rule : c.rules) {
    rules.push_back(rule_of(rule));
    files.push_back(rule.file);
  }
  const std::vector<std::int32_t> heads(c.heads.begin(), c.heads.end());
  const auto blocks = std::make_shared<const BlockPattern>(
      block_pattern(c.block ? narrow<std::int32_t>(c.block) : 128, std::move(rules), files, heads, model.kv_heads));
  blocks->check_covers(model.context, "model.attention");
  return blocks;
}

// Without its blocks.
Pattern plain_pattern_of(const ModelConfig& model, const AttentionConfig& c, std::int64_t layer) {
  Pattern p;
  p.kind = c.kind;
  p.window = narrow<std::int32_t>(c.window);
  p.sinks = narrow<std::int32_t>(c.sinks);
  for (std::size_t i = 0; i < c.segments.size(); ++i)
    p.branches.push_back({narrow<std::int32_t>(c.segments[i]), narrow<std::int32_t>(c.rates[i])});
  p.dedup = c.dedup;
  if (c.kind == AttentionKind::dilated) p.shift = narrow<std::int32_t>(layer * model.kv_heads);
  return p;
}

}  // namespace

std::vector<const AttentionConfig*> attentions_of(const ModelConfig& c) {
  std::vector<const AttentionConfig*> of_layer(static_cast<std::size_t>(c.layers), &c.attention);
  for (const LayerAttentionConfig& entry : c.attention_layers)
    for (const std::int64_t layer : layers_named(entry.layers, c.layers))
      of_layer[static_cast<std::size_t>(layer)] = &entry.attention;
  return of_layer;
}

const AttentionConfig& attention_of(const ModelConfig& c, std::int64_t layer) {
  return *attentions_of(c).at(static_cast<std::size_t>(layer));
}

std::vector<Pattern> patterns_of(const ModelConfig& c, KvHeads heads) {
  const auto blocks_for = [&](const AttentionConfig& section) {
    Pattern p;
    p.blocks = blocks_of(section, c);
    return heads.count ? of_heads(p, heads).blocks : p.blocks;
  };
  std::map<const AttentionConfig*, std::shared_ptr<const BlockPattern>> made;
  std::vector<Pattern> patterns;
  for (const AttentionConfig* section : attentions_of(c)) {
    if (!made.count(section)) made[section] = blocks_for(*section);
    const auto layer = static_cast<std::int64_t>(patterns.size());
    Pattern& p = patterns.emplace_back(plain_pattern_of(c, *section, layer));
    p = of_heads(p, heads);
    p.blocks = made[section];
  }
  return patterns;
}

Pattern pattern_of(const ModelConfig& c, std::int64_t layer) {
  const AttentionConfig& section = attention_of(c, layer);
  Pattern p = plain_pattern_of(c, section, layer);
  p.blocks = blocks_of(section, c);
  return p;
}

}  // namespace ring
