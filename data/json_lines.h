#pragma once
// JSON Lines: one object a line, of which one member is a document's text.

#include <cstdint>
#include <string>
#include <string_view>

#include "data/document_sink.h"

namespace ring {

// Cuts blocks into lines and gives the sink the text of each; empty lines and texts are passed over. field: a member's
// name, or names with dots between them for members of members. Error: a line is no JSON object, or has no such text;
// with `name` and the line's number.
class JsonLines {
 public:
  JsonLines(std::string name, std::string field, DocumentSink& sink)
      : name_(std::move(name)), field_(std::move(field)), sink_(sink) {}
  void block(std::string_view text);
  void end_of_file();

 private:
  static constexpr std::size_t kLongestLine = std::size_t{1} << 30;
  void line(std::string_view);
  const std::string name_, field_;
  DocumentSink& sink_;
  std::string held_;  // the beginning of a line
  std::uint64_t line_ = 0;
};

}  // namespace ring
