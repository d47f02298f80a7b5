#pragma once
// Advice for users who give the name of a model on Hugging Face ("gpt2", "org/model") where a file or folder is
// expected.

#include <string>

namespace ring {

// Returns the end of a message, ". Nothing is downloaded. ...", with the command that downloads the model; "" if `path`
// exists or cannot be such a name.
std::string download_advice(const std::string& path);
// Like download_advice(), plus the command that turns the downloaded folder into a run.
std::string download_and_import_advice(const std::string& path);
// Returns the command that turns a published model's folder into a run: `ringmaster import FOLDER --output runs/NAME`.
std::string import_command(const std::string& folder);

}  // namespace ring
