#pragma once

#include <string>
#include <vector>

#include "cli/command.h"

namespace ring {

// A completion for one word of a command line.
struct Candidate {
  std::string text;   // the completed word; if it ends with '=' or '.', more of it must follow
  std::string about;  // one-line description; may be empty
};

// Returns the completions of the last of `words`: the words typed so far, without the program's name; the last word is
// unfinished or empty. The list is empty if the word may be a file or cannot be guessed.
std::vector<Candidate> completion_candidates(Command app, const std::vector<std::string>& words);

}  // namespace ring
