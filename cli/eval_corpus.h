#pragma once
// What `eval` and `attention fit` read of a corpus or of text, and the options that say it.

#include <string>

#include "data/loader.h"
#include "data/prepare.h"

namespace CLI {
class App;
}

namespace ring {

struct Session;

struct EvalCorpus {
  std::string data, split_name = "validation";
  PrepareOptions text;
  std::int64_t batches = 0, rows = 0;  // 0: all; see batch_rows()

  void add_to(CLI::App& command);          // --data, --split, --text, --document, and how --text has records
  void add_batches_to(CLI::App& command);  // --batches, --batch-size

  // Error: the run has none of its own and none is given, or it has another tokenizer.
  Corpora open(const std::string& run, int threads, const Session&) const;
  Split split() const;  // all of --text is its training split
  // Windows of so many tokens.
  ValidationSet windows(const Session&, const Corpora&, std::int64_t context) const;
};

}  // namespace ring
