#pragma once
// What the preparation of a corpus is told, says meanwhile, and reports.

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "data/text_files.h"
#include "text/tokenizer.h"

namespace ring {

struct PrepareOptions {
  std::vector<std::string> inputs;
  std::vector<std::string> validation_inputs;  // the validation split, in place of a share of the inputs; empty: none
  std::string glob = "*";
  bool as_text = false;  // also what looks like no text
  FileOptions file_options = FileOptions::all;
  RecordMembers members;      // as list_text_files(); the writer of conversations is made here
  std::string chat_template;  // as load_chat_format()
  std::string tokenizer;      // as load_tokenizer(), or "chars": built from the input
  std::string output;
  // hash, tail, or auto: the tail of each file where files are the documents and fewer than 10 would be chosen, else
  // hash
  std::string split = "auto";
  double validation_fraction = 0.01;
  bool enlarge_validation = false;  // of a small input: a larger fraction, up to a tenth
  std::string document = "file";    // as parse_document_rule()
  int threads = 0;                  // 0: all cores
};

struct PrepareProgress {
  std::uint64_t bytes = 0, total_bytes = 0;  // of the input; total 0: not known before
  std::uint64_t tokens = 0;
};

struct PrepareReport {
  std::uint64_t files = 0, bytes = 0;
  std::uint64_t tokens[2] = {0, 0}, documents[2] = {0, 0}, targets[2] = {0, 0};  // train, validation
  std::uint64_t longest = 0;                                                     // document, in tokens
  std::uint64_t ends_added = 0;       // end-of-text tokens that documents of tokens lacked
  std::uint64_t without_targets = 0;  // documents of which no token counts
  std::string first_file_without;     // where the first of them is
  EncodeReport encode;
  std::string first_bad_file;  // where `encode` first counted something
  std::shared_ptr<const Tokenizer> tokenizer;
  double seconds = 0;
};

}  // namespace ring
