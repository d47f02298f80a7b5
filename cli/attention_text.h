#pragma once
// `attention show --text`: shows what a trained model attends to in a text.

#include <cstdint>
#include <string>
#include <vector>

#include "evaluate/session.h"

namespace ring {

struct AttentionOnText {
  std::string run, text, svg;  // run: run or checkpoint; text: text file; svg: output file, or empty
  std::vector<std::string> overrides;
  SavedWeights weights = SavedWeights::latest;
  int threads = 0;
  std::int64_t layer = -1, head = 0;  // layer -1: all layers
  std::int64_t length = 0;            // maximum tokens; 0: kUsualTextTokens, or the context if that is less
  std::int64_t columns = 80;
};
constexpr std::int64_t kUsualTextTokens = 4096;

// Throws Error if the model lacks the layer or the KV head. layer: -1 for none in particular.
void check_layer_and_head(const ModelConfig&, std::int64_t layer, std::int64_t head);

// Throws Error if the run or the text cannot be read, or if the model lacks the layer or the head.
void show_attention_on_text(const AttentionOnText&);

}  // namespace ring
