#pragma once
// Generates a settings file for a machine and a corpus.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "model/config.h"

namespace ring {

struct StartingPoint {
  std::string kind = "llama-small";  // one of starting_kinds()
  std::string name = "my-run";       // run name
  std::string data = "corpus.h5";
  std::uint64_t tokens = 0;   // number of tokens in the corpus's training split; 0 if unknown
  std::uint64_t longest = 0;  // number of tokens in the corpus's longest document; 0 if unknown
  bool gpu = false;
  std::string weights;               // for finetune: the run or import from which weights are loaded
  std::optional<ModelConfig> model;  // for finetune: the model to which these weights belong
  std::string model_file;  // a settings file whose `model` is included; if empty, the model's settings are repeated
};

std::vector<std::string> starting_kinds();

// Returns model.context for a finetune: a power of two that is sufficient for the longest document, between 256 and the
// model's context, and at most 4096 (CPU) or 32,768 (GPU). If positions are learned, returns the model's context.
std::int64_t finetune_context(const StartingPoint&);

// Returns YAML with a comment for each key that users are likely to change. The YAML can be loaded as a Config.
std::string starting_settings(const StartingPoint&);

}  // namespace ring
