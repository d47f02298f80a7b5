#pragma once
// Attention patterns of a model's layers.

#include <string>
#include <vector>

#include "kernels/attention/pattern.h"
#include "model/config.h"

namespace ring {

// Returns the last entry of `attention_layers` that names the layer, else `attention`.
const AttentionConfig& attention_of(const ModelConfig&, std::int64_t layer);

// Returns the attention section of each layer.
std::vector<const AttentionConfig*> attentions_of(const ModelConfig&);
// Returns the settings key of a section for messages: "model.attention_layers[1].attention".
std::string section_key(const AttentionConfig& section, const ModelConfig&);

// Returns for each layer the layer whose selection it uses: itself, or an earlier layer if its section sets
// layers_per_selection; -1 if the layer shares no selection. Layers that share a selection are adjacent and have the
// same section.
std::vector<std::int64_t> selection_sources(const ModelConfig&);

// Returns the pattern of each layer. Layers with the same section share one BlockPattern object. If KvHeads has a
// count, the patterns contain only these KV heads, renumbered from 0.
std::vector<Pattern> patterns_of(const ModelConfig& resolved, KvHeads = {});
Pattern pattern_of(const ModelConfig& resolved, std::int64_t layer);

}  // namespace ring
