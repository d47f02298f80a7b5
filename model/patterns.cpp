#include "model/patterns.h"

#include <map>

#include "core/check.h"
#include "core/checked.h"
#include "model/attention/kinds.h"
#include "model/layer_names.h"

namespace ring {
namespace {

// Returns the pattern that a settings section describes, not yet shifted for a layer (in_layer()).
Pattern pattern_of_section(const AttentionConfig& section, const ModelConfig& c) try {
  return attention_kind(section.kind).pattern(section, {c.kv_heads, c.context});
} catch (const Error& e) {
  fail(section_key(section, c), ".", e.what());  // the message begins with a key of the section
}

// Shifts the positions that dilated attention samples, by the layer number. So each position is sampled in some layer
// even if there are fewer heads than the dilation rate.
Pattern in_layer(Pattern p, std::int64_t layer, std::int64_t kv_heads) {
  if (p.has_samples()) p.shift += narrow<std::int32_t>(layer * kv_heads);
  return p;
}

}  // namespace

std::vector<const AttentionConfig*> attentions_of(const ModelConfig& c) {
  std::vector<const AttentionConfig*> of_layer(static_cast<std::size_t>(c.layers), &c.attention);
  for (const LayerAttentionConfig& entry : c.attention_layers)
    for (const std::int64_t layer : parse_layer_list(entry.layers, c.layers))
      of_layer[static_cast<std::size_t>(layer)] = &entry.attention;
  return of_layer;
}

// `section` must be one of the sections of c, which is recognized by its address.
std::string section_key(const AttentionConfig& section, const ModelConfig& c) {
  for (std::size_t i = 0; i < c.attention_layers.size(); ++i)
    if (&c.attention_layers[i].attention == &section) return str("model.attention_layers[", i, "].attention");
  return "model.attention";
}

const AttentionConfig& attention_of(const ModelConfig& c, std::int64_t layer) {
  return *attentions_of(c).at(static_cast<std::size_t>(layer));
}

std::vector<std::int64_t> selection_sources(const ModelConfig& c) {
  const std::vector<const AttentionConfig*> sections = attentions_of(c);
  std::vector<std::int64_t> of_layer;
  std::int64_t begin = 0;  // first layer of the current group of adjacent layers with the same section
  for (std::int64_t i = 0; i < c.layers; ++i) {
    const AttentionConfig* section = sections[static_cast<std::size_t>(i)];
    if (section != sections[static_cast<std::size_t>(begin)]) begin = i;
    const std::int64_t group = section->layers_per_selection;
    of_layer.push_back(group > 1 ? i - (i - begin) % group : -1);  // first layer of each group; -1 without groups
  }
  return of_layer;
}

std::vector<Pattern> patterns_of(const ModelConfig& c, KvHeads heads) {
  std::map<const AttentionConfig*, Pattern> made;
  std::vector<Pattern> patterns;
  for (const AttentionConfig* section : attentions_of(c)) {
    if (!made.count(section)) {
      const Pattern whole = pattern_of_section(*section, c);
      made[section] = heads.count ? of_heads(whole, heads) : whole;
    }
    patterns.push_back(in_layer(made[section], static_cast<std::int64_t>(patterns.size()), c.kv_heads));
  }
  return patterns;
}

Pattern pattern_of(const ModelConfig& c, std::int64_t layer) {
  return in_layer(pattern_of_section(attention_of(c, layer), c), layer, c.kv_heads);
}

}  // namespace ring
