#pragma once
// What the layers of a model attend over.

#include <string>
#include <vector>

#include "kernels/attention/pattern.h"
#include "model/config.h"

namespace ring {

// The last entry of `attention_layers` that names the layer, else `attention`.
const AttentionConfig& attention_of(const ModelConfig&, std::int64_t layer);

// The attention section of each layer.
std::vector<const AttentionConfig*> attentions_of(const ModelConfig&);
// The key of one of them, as messages name it: "model.attention_layers[1].attention".
std::string section_key(const AttentionConfig& section, const ModelConfig&);

// Whose selection each layer attends by: its own number or that of a layer before it, where its section says reuse;
// -1: nobody shares its selection, if it has one. Layers share that lie side by side and have one section.
std::vector<std::int64_t> sharing_layers(const ModelConfig&);

// What the layers attend over. Layers of one section share its blocks. With a count: for those KV heads alone, numbered
// from 0.
std::vector<Pattern> patterns_of(const ModelConfig& resolved, KvHeads = {});
Pattern pattern_of(const ModelConfig& resolved, std::int64_t layer);

}  // namespace ring
