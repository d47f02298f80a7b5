#pragma once
// Settings to begin with, written for a machine and a corpus.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "model/config.h"

namespace ring {

struct StartingPoint {
  std::string kind = "llama-small";  // one of starting_kinds()
  std::string name = "my-run";       // of the run
  std::string data = "corpus.h5";
  std::uint64_t tokens = 0;   // of the corpus's training split; 0: not known
  std::uint64_t longest = 0;  // tokens of its longest document; 0: not known
  bool gpu = false;
  std::string weights;               // of finetune: the run or import whose weights it takes
  std::optional<ModelConfig> model;  // and what they are the weights of
  std::string model_file;            // settings with `model`, to include; empty: the file repeats them
};

std::vector<std::string> starting_kinds();

// Returns model.context of a finetune: a power of two that holds the longest document, at least 256, at most what the
// model knows and 4096 (CPUs) or 32,768 (a GPU). If positions are learned, it is the model's own.
std::int64_t finetune_context(const StartingPoint&);

// YAML, each key that one may want to change with what it means. Loads as a Config.
std::string starting_settings(const StartingPoint&);

}  // namespace ring
