#pragma once
// `ringmaster eval --long`.

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
  std::int64_t length = 0, trials = 10;
  std::vector<std::int64_t> lengths;
  std::vector<double> depths = {0, 0.25, 0.5, 0.75, 1};
  std::uint64_t seed = 1;
  std::vector<std::string> tasks = {"passkey"};
  std::string svg;
  bool csv = false;
  void add_to(Command command);
};

// batches, rows: of the windows whose loss is computed; 0: all, and as many as make up about 32,768 tokens.
void long_eval(const Session&, const Corpora&, Split, const LongEvalArguments&, std::int64_t batches, std::int64_t rows,
               bool json);

// Error, which names the option: the model has learned its positions, and they are fewer.
void check_length(const ModelConfig&, const char* option, std::int64_t length);

// Sequences in a batch where the user does not say: at most 32, and not many more than 32,768 tokens.
std::int64_t batch_rows(std::int64_t asked, std::int64_t length);

}  // namespace ring
