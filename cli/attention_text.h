#pragma once
// `attention show --text`: shows which tokens of a text a trained model attends to.

#include <cstdint>
#include <string>
#include <vector>

#include "evaluate/session.h"

namespace ring {

struct AttentionOnText {
  std::string run, text, svg;  // paths: a run or checkpoint; a text file; an output file, or ""
  std::vector<std::string> overrides;
  SavedWeights weights = SavedWeights::latest;
  int threads = 0;
  std::int64_t layer = -1, head = 0;  // layer: -1 means all layers
  std::int64_t length = 0;  // maximum number of tokens; 0 means kUsualTextTokens, or the context if it is smaller
  std::int64_t columns = 80;
};
constexpr std::int64_t kUsualTextTokens = 4096;

// Throws Error if the model does not have the layer or the KV head. layer: -1 means none in particular.
void check_layer_and_head(const ModelConfig&, std::int64_t layer, std::int64_t head);

// Throws Error if the run or the text cannot be read, or if the model does not have the layer or the head.
void show_attention_on_text(const AttentionOnText&);

}  // namespace ring
