#pragma once
// Reader of JSON Lines: one object per line. Lines end with \n, \r\n or \r; JSON strings must escape these characters.

#include <cstdint>
#include <string>
#include <string_view>

#include "data/records.h"

namespace ring {

// Splits blocks into lines and passes each line's record to `take`; skips empty lines. Throws Error, with `name` and
// the line number, if a line is not a JSON object or is longer than 1 GiB.
class JsonLines {
 public:
  JsonLines(std::string name, TakeRecord take) : name_(std::move(name)), take_(std::move(take)) {}
  void add_block(std::string_view text);
  void on_end_of_file();

 private:
  static constexpr std::size_t kLongestLine = std::size_t{1} << 30;
  void parse_lines(std::string_view);  // splits text without \n at each \r
  void parse_line(std::string_view);
  const std::string name_;
  const TakeRecord take_;
  std::string held_;  // beginning of an incomplete line
  std::uint64_t line_ = 0;
};

}  // namespace ring
