#pragma once
// The data that `eval` and `attention fit` read, either a corpus or text, and the options for it.

#include <optional>
#include <string>

#include "cli/command.h"
#include "data/loader.h"
#include "data/prepare.h"

namespace ring {

struct Session;

struct EvalCorpus {
  std::string data, split_name = "validation";
  PrepareOptions text;
  std::int64_t batches = 0, rows = 0;  // batches: 0 means all; rows: see sequences_per_batch()
  std::optional<bool> documents;       // --separate-documents; nullopt for auto

  // Adds --data, --split, --text, --document, --separate-documents, and the options for records in --text.
  void add_to(Command command);
  void add_batches_to(Command command);  // adds --batches and --batch-size

  // Opens the corpus or text. Throws Error if neither is given and the run has no corpus, or if the corpus was made
  // with a different tokenizer.
  Corpora open_corpora(const std::string& run, int threads, const Session&) const;
  Split split() const;  // the training split for --text, which has no other split
  // Returns true if some tokens of the split are not targets, e.g. prompts and the user's part of conversations.
  bool has_loss_mask(const Corpora&) const;
  // Returns how documents are packed into windows. In a split with a loss mask, documents are separated, and only
  // documents longer than a window are cut, so that models can be compared however they were trained. Other splits are
  // packed as in the run's training. --separate-documents overrides both. If documents are separated, they are aligned
  // as the run's attention requires.
  PackingConfig packing(const Session&, const Corpora&) const;
  // Returns windows of `context` tokens.
  ValidationSet make_validation_set(const Session&, const Corpora&, std::int64_t context, bool in_chunks = false) const;
};

}  // namespace ring
