// Target: a command line, whose words end at newlines. Nothing is run.
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
  ring::Program program("ringmaster", "fuzzed");
  ring::add_commands(program);
  program.disable_callbacks();
  try {
    ring::parse_arguments(program, words);
  } catch (const ring::HelpAsked&) {
  } catch (const ring::Error&) {
  }
  return 0;
}
