#pragma once
// Names of models on Hugging Face ("gpt2", "org/model"), given where a file or folder is expected.

#include <string>

namespace ring {

// Says that nothing is downloaded and which command downloads the folder, as a continuation of a message (". Nothing
// ..."); empty if `path` exists or cannot be such a name.
std::string download_advice(const std::string& path);
// The same, with the command that makes a run of the folder.
std::string download_and_import_advice(const std::string& path);

}  // namespace ring
