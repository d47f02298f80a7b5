#pragma once
// What the layers of a model attend over.

#include <vector>

#include "kernels/attention/pattern.h"
#include "model/config.h"

namespace ring {

// The last entry of `attention_layers` that names the layer, else `attention`.
const AttentionConfig& attention_of(const ModelConfig&, std::int64_t layer);

// The attention section of each layer.
std::vector<const AttentionConfig*> attentions_of(const ModelConfig&);

// What the layers attend over. Layers of one section share its blocks. With a count: for those KV heads alone, numbered
// from 0.
std::vector<Pattern> patterns_of(const ModelConfig& resolved, KvHeads = {});
Pattern pattern_of(const ModelConfig& resolved, std::int64_t layer);

}  // namespace ring
