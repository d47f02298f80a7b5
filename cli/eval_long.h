#pragma once
// `ringmaster eval --long`: evaluates a model's use of long contexts.

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
  // length: tokens per window for the loss, 0 for model.context; trials: prompts per length and depth, 0 for none.
  std::int64_t length = 0, trials = 10;
  std::vector<std::int64_t> lengths;                     // tokens per prompt; empty: the context, its half and so on
  std::vector<double> depths = {0, 0.25, 0.5, 0.75, 1};  // position of the answer in the prompt
  std::uint64_t seed = 1;
  std::vector<std::string> tasks = {"passkey"};
  std::string svg;  // output file; may be empty
  bool csv = false;
  void add_to(Command command);
};

// batches, rows: batches of windows for the loss, and windows per batch; 0 means all batches, and batches of about
// 32,768 tokens.
void long_eval(const Session&, const Corpora&, Split, const LongEvalArguments&, std::int64_t batches, std::int64_t rows,
               bool json);

// Throws Error, naming the option, if the model has learned positions and `length` exceeds their number.
void check_length(const ModelConfig&, const char* option, std::int64_t length);

// Returns the sequences in a batch: `asked` if positive, otherwise 1 to 32, with about 32,768 tokens if possible.
std::int64_t batch_rows(std::int64_t asked, std::int64_t length);

}  // namespace ring
