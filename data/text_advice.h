#pragma once
// Advice for users who give a text file where a corpus is expected: the command that makes a corpus from the file.

#include <string>

namespace ring {

// Returns true for a regular file that is not a corpus and whose first 4 KB contain no control characters except white
// space.
bool is_text_file(const std::string& path);
// A tokenizer as a value of --tokenizer.
struct NamedTokenizer {
  std::string name = "bytes";
  bool has_chat_template = false;
};

// Returns the options with which `data prepare` reads the file's records, e.g. " --chat-field". Decides by the first
// record; returns "" if no options are needed.
std::string record_options(const std::string& text_file, const NamedTokenizer&);
// Returns `ringmaster data prepare ...` for the file.
std::string preparing_command(const std::string& text_file, const NamedTokenizer& = {});
// Returns the name of the corpus that preparing_command() writes: NAME.h5 for NAME.txt.
std::string corpus_name(const std::string& text_file);

}  // namespace ring
