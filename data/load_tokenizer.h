#pragma once
// Loads tokenizers by name: from a file, a folder or a corpus.

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "text/tokenizer.h"

namespace ring {

// Returns the tokenizer that `spec` names: "bytes", or the path of a tokenizer file (.rmt), of a tokenizer.json (read
// with the tokenizer_config.json beside it), of a SentencePiece model, of a corpus that contains a tokenizer, or of a
// folder with one of the first three (see load_tokenizer_in()).
std::shared_ptr<const Tokenizer> load_tokenizer(const std::string& spec);
// Returns the first tokenizer in a folder that can be read: tokenizer.rmt, tokenizer.json or tokenizer.model; null if
// there is none. Appends to `problems` why each of the others cannot be read.
std::shared_ptr<const Tokenizer> load_tokenizer_in(const std::string& folder, std::vector<std::string>& problems);
// Same as load_tokenizer(spec), but also throws Error if `hash` is not empty and is not the tokenizer's hash. hash:
// hash of the tokenizer with which `owner` (e.g. "checkpoint runs/a/checkpoints/step-100") was made.
std::shared_ptr<const Tokenizer> load_tokenizer(const std::string& spec, const std::string& hash,
                                                const std::string& owner);

// Returns the folder of a tokenizer file, or `spec` if it is a folder.
std::filesystem::path tokenizer_folder(const std::string& spec);
// Returns the text of the file `name` in tokenizer_folder(spec), without a byte order mark; "" if there is no such
// file.
std::string text_beside_tokenizer(const std::string& spec, const std::string& name);

}  // namespace ring
