#pragma once

#include <string>
#include <vector>

#include "cli/command.h"

namespace ring {

// What may stand in one place of a command line.
struct Candidate {
  std::string text;   // that ends with '=' or '.' goes on
  std::string about;  // a line; may be empty
};

// `words` are those typed so far, without the program's name; the last one is unfinished, or empty. Nothing: a file may
// stand there, or what nobody can guess.
std::vector<Candidate> candidates(Command app, const std::vector<std::string>& words);

}  // namespace ring
