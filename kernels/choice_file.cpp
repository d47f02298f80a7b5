#include "kernels/choice_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <optional>
#include <sstream>
#include <utility>

#include "core/check.h"
#include "core/fields.h"
#include "core/io_error.h"
#include "core/regular_file.h"
#include "core/text_file.h"
#include "core/yaml.h"

namespace ring {
namespace {

// Version of the file's content. Increment it when the meaning of a key or of a choice changes but its text does not.
constexpr int kVersion = 1;
constexpr const char* kHeaderStart = "# ringmaster choices, version ";

std::optional<std::pair<std::string, std::string>> parse_line(const std::string& line) {
  const std::size_t key = line.find('"'), key_end = line.find('"', key + 1);
  const std::size_t value = line.find('"', key_end + 1), value_end = line.find('"', value + 1);
  if (key != 0 || key_end == std::string::npos || value == std::string::npos || value_end == std::string::npos)
    return {};
  if (line.substr(key_end, value - key_end) != "\": ") return {};
  return std::pair{line.substr(1, key_end - 1), line.substr(value + 1, value_end - value - 1)};
}

std::string header_for(const std::string& lines) {
  char hash[17];
  std::snprintf(hash, sizeof hash, "%016llx", static_cast<unsigned long long>(hash_text(lines)));
  return str(kHeaderStart, kVersion, ", hash ", hash, '\n');
}

// Returns the lines after the header, which is the first line. Throws Error if the header does not match these lines.
std::string body_of(const std::string& text, const std::string& path) {
  const std::size_t end = text.find('\n');
  const std::string header = text.substr(0, end == std::string::npos ? end : end + 1);
  const std::string lines = text.substr(header.size());
  if (header == header_for(lines)) return lines;
  const std::string version = str(kHeaderStart, kVersion, ",");
  if (header.starts_with(kHeaderStart) && !header.starts_with(version))
    fail(path, ": expected choices of version ", kVersion, ", got '", header.substr(0, header.size() - 1),
         "'. Another version of ringmaster wrote this file: set run.tuning to a different file");
  fail(path, ": the hash in its first line does not match the rest of the file, which is damaged or was edited. ",
       "Delete it. Its choices are then measured again, and results may differ in rounding from earlier runs");
}

}  // namespace

void parse_choices(const std::string& text, const std::string& name, ChoiceMap& choices) {
  std::istringstream in(text);
  std::string line;
  for (int number = 1; std::getline(in, line); ++number) {
    if (line.empty() || line[0] == '#') continue;
    const auto entry = parse_line(line);
    if (!entry) fail(name, ":", number, ": expected a choice, \"key\": \"choice\", got '", shown(line, 200), "'");
    choices.insert_or_assign(entry->first, entry->second);
  }
}

std::string to_text(const ChoiceMap& choices) {
  std::string text;
  for (const auto& [key, choice] : choices) text += '"' + key + "\": \"" + choice + "\"\n";
  return text;
}

ChoiceMap read_choice_file(const std::string& path) {
  if (!std::filesystem::exists(path)) return {};
  ChoiceMap choices;
  parse_choices(body_of(read_text_file(path, kMaxChoiceFileBytes), path), path, choices);
  return choices;
}

void write_choice_file(const std::string& path, const ChoiceMap& choices) {
  const std::string temporary = str(path, '.', ::getpid(), ".new");
  std::error_code ignored;  // if this fails, writing the file reports the error
  if (const auto folder = std::filesystem::path(path).parent_path(); !folder.empty())
    std::filesystem::create_directories(folder, ignored);
  const std::string lines = to_text(choices);
  check_regular("write", temporary, O_WRONLY | O_CREAT);
  errno = 0;
  std::ofstream out(temporary);  // allowed open: checked by check_regular() above
  out << header_for(lines) << lines;
  out.close();
  std::error_code error(out ? 0 : errno ? errno : EIO, std::generic_category());
  if (out) std::filesystem::rename(temporary, path, error);
  if (!error) return;
  std::filesystem::remove(temporary, ignored);
  fail("cannot write ", path, " through the temporary file ", temporary, ": ", io_error_text(error.value()));
}

}  // namespace ring
