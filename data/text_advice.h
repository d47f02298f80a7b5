#pragma once
// Text that was given where a corpus is expected: the command that makes a corpus of it.

#include <string>

namespace ring {

// Returns true if the beginning of a regular file holds no control characters but white space, as other files do.
bool is_text_file(const std::string& path);
// A tokenizer as a value of --tokenizer.
struct NamedTokenizer {
  std::string name = "bytes";
  bool has_chat_template = false;
};

// Returns the options of `data prepare` by which the file's records are read, such as " --chat-field", by the first
// record; empty if it is plain text or has a `text`.
std::string record_options(const std::string& text_file, const NamedTokenizer&);
// Returns `ringmaster data prepare ...` for the file.
std::string preparing_command(const std::string& text_file, const NamedTokenizer& = {});
// Returns the name of the corpus that preparing_command() writes: NAME.h5 for NAME.txt.
std::string corpus_name(const std::string& text_file);

}  // namespace ring
