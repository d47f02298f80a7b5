#pragma once
// Decisions of a preparation that are made before anything is encoded.

#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "data/encode_job.h"
#include "data/preparation.h"
#include "data/text_files.h"

namespace ring {

enum class SplitKind : std::uint8_t {
  // Whole documents, selected by a hash of file name and document number; other files do not affect the selection.
  hash,
  tail,   // the last fraction of all text, split between two characters (for "chars": counted in characters)
  tails,  // the last fraction of each file, split in the same way
  files   // separate files: `validation_inputs`
};

inline constexpr std::uint64_t kNoValidation = std::numeric_limits<std::uint64_t>::max();

struct PreparePlan {
  std::vector<TextFile> files;  // validation files come last
  bool tokens = false;          // true if the files are the .bin files of Megatron-LM data sets (data/megatron.h)
  std::shared_ptr<const Tokenizer> tokenizer;
  SplitKind split = SplitKind::hash;
  // Start of each file's validation text, or kNoValidation. Not used with SplitKind::hash.
  std::vector<std::uint64_t> validation_from;
  std::uint64_t bytes = 0;  // total size of the files
  DocumentShape shape = DocumentShape::text;
  std::string chat_format;  // the chat format as JSON; empty if there are no conversations

  std::string summary(const PrepareOptions&) const;  // one line that describes the source of the corpus
};

// Returns the split that a hash of file name and document number (within the file) selects.
Split hashed_split(const PrepareOptions&, const std::string& file, std::uint64_t document);

// Makes the plan; adjusts options.validation_fraction if options.enlarge_validation is set. Throws Error if options
// contradict each other or do not fit the files, and the errors of prepare_corpus() for inputs.
PreparePlan plan_preparation(PrepareOptions& options);

}  // namespace ring
