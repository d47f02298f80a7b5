#pragma once
// Options, progress and report of the preparation of a corpus.

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "data/text_files.h"
#include "text/tokenizer.h"

namespace ring {

struct PrepareOptions {
  std::vector<std::string> inputs;
  std::vector<std::string> validation_inputs;  // files of the validation split; empty: a fraction of `inputs`
  std::string glob = "*";
  bool as_text = false;  // read files as text even if they do not look like text
  FileOptions file_options = FileOptions::all;
  RecordMembers members;      // as for list_text_files(); prepare_corpus() creates the writer
  std::string chat_template;  // as for load_chat_format()
  std::string tokenizer;      // as for load_tokenizer(), or "chars": built from the input
  std::string output;
  // "hash", "tail" or "auto": the tail of each file if files are the documents and a hash would choose fewer than 10 of
  // them, otherwise "hash".
  std::string split = "auto";
  double validation_fraction = 0.01;
  bool enlarge_validation = false;  // uses a larger fraction, up to a tenth, for a small input
  std::string document = "file";    // as for parse_document_rule()
  int threads = 0;                  // 0: all cores
};

struct PrepareProgress {
  std::uint64_t bytes = 0, total_bytes = 0;  // bytes of the input; total 0: not known in advance
  std::uint64_t tokens = 0;
};

struct PrepareReport {
  std::uint64_t files = 0, bytes = 0;
  std::uint64_t tokens[2] = {0, 0}, documents[2] = {0, 0}, targets[2] = {0, 0};  // by split: train, validation
  std::uint64_t longest = 0;                                                     // tokens of the longest document
  std::uint64_t ends_added = 0;       // end-of-text tokens added to imported documents that lacked one
  std::uint64_t without_targets = 0;  // documents in which no token counts as a target
  std::string first_file_without;     // file of the first such document
  EncodeReport encode;
  std::string first_bad_file;  // first file with a problem that `encode` counts
  std::shared_ptr<const Tokenizer> tokenizer;
  double seconds = 0;
};

}  // namespace ring
