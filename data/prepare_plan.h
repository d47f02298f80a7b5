#pragma once
// What a preparation settles before the first byte is encoded.

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
  hash,   // whole documents, chosen by a hash of file name and place: other files do not change the choice
  tail,   // the last fraction of the text in order, cut between two characters (for `chars`: counted in characters)
  tails,  // the last fraction of each file, cut in the same way
  files   // files of their own: `validation_inputs`
};

inline constexpr std::uint64_t kNoValidation = std::numeric_limits<std::uint64_t>::max();

struct PreparePlan {
  std::vector<TextFile> files;  // those for validation last
  bool tokens = false;          // the files are the .bin of data sets of Megatron-LM (data/megatron.h)
  std::shared_ptr<const Tokenizer> tokenizer;
  SplitKind split = SplitKind::hash;
  // Where the validation text of each file begins; kNoValidation: nowhere. Splits by a hash ignore it.
  std::vector<std::uint64_t> validation_from;
  std::uint64_t bytes = 0;  // of the files
  DocumentShape shape = DocumentShape::text;
  std::string chat_format;  // as JSON; empty: no conversations

  std::string summary(const PrepareOptions&) const;  // what the corpus is made of, in one line
};

// Where a hash puts a document, by its file's name and its number there.
Split hashed_split(const PrepareOptions&, const std::string& file, std::uint64_t document);

// Settles options.validation_fraction where options.enlarge_validation asks for it. Throws Error if options do not fit
// each other or the files; see also prepare_corpus().
PreparePlan plan_preparation(PrepareOptions& options);

}  // namespace ring
