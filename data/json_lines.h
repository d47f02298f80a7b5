#pragma once
// JSON Lines: one object a line. Lines end with \n, \r\n or \r, which JSON strings must escape.

#include <cstdint>
#include <string>
#include <string_view>

#include "data/records.h"

namespace ring {

// Cuts blocks into lines and gives `take` the record of each; empty lines are passed over. Error: a line is no JSON
// object; with `name` and the line's number.
class JsonLines {
 public:
  JsonLines(std::string name, TakeRecord take) : name_(std::move(name)), take_(std::move(take)) {}
  void block(std::string_view text);
  void end_of_file();

 private:
  static constexpr std::size_t kLongestLine = std::size_t{1} << 30;
  void lines(std::string_view);  // splits at \r
  void line(std::string_view);
  const std::string name_;
  const TakeRecord take_;
  std::string held_;  // the beginning of a line
  std::uint64_t line_ = 0;
};

}  // namespace ring
