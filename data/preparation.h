#pragma once
// Options, progress and report of a corpus preparation.

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "data/text_files.h"
#include "text/tokenizer.h"

namespace ring {

struct PrepareOptions {
  std::vector<std::string> inputs;
  // Files of the validation split; if empty, a fraction of `inputs` is used.
  std::vector<std::string> validation_inputs;
  std::string glob = "*";
  bool as_text = false;  // true to read files as text even if they do not look like text
  FileOptions file_options = FileOptions::all;
  RecordMembers members;      // see list_text_files(); prepare_corpus() creates the writer, so leave it null
  std::string chat_template;  // see load_chat_format()
  std::string tokenizer;      // see load_tokenizer(); "chars" builds one from the input
  std::string output;
  // "hash", "tail" or "auto". auto means "hash", unless files are the documents and a hash would select fewer than 10
  // of them: then the tail of each file is used.
  std::string split = "auto";
  double validation_fraction = 0.01;
  bool enlarge_validation = false;  // true to use a larger fraction, up to 1/10, for a small input
  std::string document = "file";    // see parse_document_rule()
  int threads = 0;                  // 0 means all cores
};

struct PrepareProgress {
  // Bytes of the input; total_bytes is 0 if the total is not known in advance.
  std::uint64_t bytes = 0, total_bytes = 0;
  std::uint64_t tokens = 0;
};

struct PrepareReport {
  std::uint64_t files = 0, bytes = 0;
  std::uint64_t tokens[2] = {0, 0}, documents[2] = {0, 0}, targets[2] = {0, 0};  // [train, validation]
  std::uint64_t longest = 0;          // number of tokens of the longest document
  std::uint64_t ends_added = 0;       // number of end-of-text tokens added to imported documents that lacked one
  std::uint64_t without_targets = 0;  // number of documents in which no token counts as a target
  std::string first_file_without;     // file of the first such document
  EncodeReport encode;
  std::string first_bad_file;  // path of the first file with invalid bytes or unknown characters; see `encode`
  std::shared_ptr<const Tokenizer> tokenizer;
  double seconds = 0;
};

}  // namespace ring
