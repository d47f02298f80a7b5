#pragma once
// What `eval` and `attention fit` read of a corpus or of text, and the options that say it.

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
  std::int64_t batches = 0, rows = 0;  // 0: all; see batch_rows()
  std::optional<bool> documents;       // --separate-documents; empty: auto

  // Adds --data, --split, --text, --document, --separate-documents, and how --text has records.
  void add_to(Command command);
  void add_batches_to(Command command);  // --batches, --batch-size

  // Error: the run has none of its own and none is given, or it has another tokenizer.
  Corpora open(const std::string& run, int threads, const Session&) const;
  Split split() const;  // all of --text is its training split
  // Returns whether some tokens of the split do not count as targets: prompts, and what a user says in a conversation.
  bool masked(const Corpora&) const;
  // Returns how documents are packed into windows. Documents of a masked split are separate and are not cut if they fit
  // into a window, so that models compare whatever they were trained with; other splits are packed as the run trained.
  // --separate-documents overrides both. If documents are separate, they are aligned as the run's attention needs.
  PackingConfig packing(const Session&, const Corpora&) const;
  // Windows of so many tokens.
  ValidationSet windows(const Session&, const Corpora&, std::int64_t context) const;
};

}  // namespace ring
