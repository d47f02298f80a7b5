#pragma once
// `attention show --text`: what a trained model attends to in a text.

#include <cstdint>
#include <string>
#include <vector>

#include "evaluate/session.h"

namespace ring {

struct AttentionOnText {
  std::string run, text, svg;  // a run or a checkpoint; a file of text; where to draw, or empty
  std::vector<std::string> overrides;
  SavedWeights weights = SavedWeights::latest;
  int threads = 0;
  std::int64_t layer = -1, head = 0;  // layer: -1: all
  std::int64_t length = 0;            // tokens at most; 0: kUsualTextTokens, or the context where that is less
  std::int64_t columns = 80;
};
constexpr std::int64_t kUsualTextTokens = 4096;

// Error: the model lacks the layer, or the KV head. layer: -1: none in particular.
void check_layer_and_head(const ModelConfig&, std::int64_t layer, std::int64_t head);

// Error: no run, no text, a layer or head that the model lacks.
void show_attention_on_text(const AttentionOnText&);

}  // namespace ring
