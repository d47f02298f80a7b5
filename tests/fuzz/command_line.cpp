// A command line: words end at newlines. Nothing is run.
#include <CLI/CLI.hpp>
#include <cstddef>
#include <cstdint>
#include <sstream>
#include <string>
#include <vector>

#include "cli/command_line.h"
#include "core/check.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  std::istringstream lines(std::string(data, data + size));
  std::vector<std::string> words;
  for (std::string word; std::getline(lines, word);) words.push_back(word);
  CLI::App app("fuzzed", "ringmaster");
  ring::add_commands(app);
  ring::run_nothing(app);
  try {
    ring::parse_arguments(app, words);
  } catch (const CLI::ParseError& e) {
    std::ostringstream out, errors;
    app.exit(e, out, errors);  // writes help and messages
  } catch (const ring::Error&) {
  }
  return 0;
}
