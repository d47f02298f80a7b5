#pragma once
// `ringmaster eval --long`: evaluates how a model uses long contexts.

#include <cstdint>
#include <string>
#include <vector>

#include "cli/command.h"
#include "data/config.h"

namespace ring {

struct Session;
struct ModelConfig;
enum class Split : std::uint8_t;

struct LongEvalArguments {
  // length: tokens per window for the loss; 0 means model.context. trials: prompts per length and depth; 0 means none.
  std::int64_t length = 0, trials = 10;
  std::vector<std::int64_t> lengths;  // tokens per prompt; if empty, the context, half of it and so on
  std::vector<double> depths = {0, 0.25, 0.5, 0.75, 1};  // share of the filler text before the answer
  std::uint64_t seed = 1;
  std::vector<std::string> tasks = {"passkey"};
  std::string svg;  // output file, or empty
  bool csv = false;
  void add_to(Command command);
};

// batches: number of batches of windows for the loss; 0 means all. rows: windows per batch; 0 means about 32,768
// tokens.
void long_eval(const Session&, const Corpora&, Split, const LongEvalArguments&, std::int64_t batches, std::int64_t rows,
               bool json);

// Throws Error, which names the option, if the model has learned positions and `length` exceeds their number.
void check_length(const ModelConfig&, const char* option, std::int64_t length);

// Returns the number of sequences in a batch: `asked` if positive, else 1 to 32, with about 32,768 tokens if possible.
std::int64_t sequences_per_batch(std::int64_t asked, std::int64_t length);

}  // namespace ring
