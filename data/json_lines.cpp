#include "data/json_lines.h"

#include <filesystem>
#include <nlohmann/json.hpp>

#include "core/byte_order_mark.h"
#include "core/check.h"
#include "core/json.h"

namespace ring {
namespace {

// Returns a hint on how to convert a file that is a single JSON list to JSON Lines, or "". The suggested command never
// overwrites its input.
std::string list_hint(const std::string& name, std::uint64_t line, std::string_view text) {
  if (line != 1 || text[text.find_first_not_of(" \t\r")] != '[') return "";
  const std::filesystem::path path = name;
  return str(". If the file is one JSON list, convert it with: jq -c '.[]' ", name, " > ", path.stem().string(),
             path.extension() == ".json" ? ".jsonl" : "_lines.jsonl");
}

}  // namespace

void JsonLines::parse_line(std::string_view text) {
  ++line_;
  text = without_byte_order_marks(text);
  if (text.find_first_not_of(" \t\r") == std::string_view::npos) return;
  const std::string where = str(name_, ":", line_, ": ");
  nlohmann::ordered_json record;
  try {
    record = parse_json<nlohmann::ordered_json>(text);
  } catch (const Error& e) {
    fail(where, "this line cannot be read as JSON: ", e.what(), "; a JSON Lines file has one whole object per line",
         list_hint(name_, line_, text));
  }
  if (!record.is_object())
    fail(where, "this line is a JSON ", record.type_name(), "; a JSON Lines file has one object per line",
         list_hint(name_, line_, text));
  take_(record, where);
}

void JsonLines::parse_lines(std::string_view text) {
  for (std::size_t at; (at = text.find('\r')) != std::string_view::npos && at + 1 < text.size();
       text.remove_prefix(at + 1))
    parse_line(text.substr(0, at));
  parse_line(text);
}

void JsonLines::add_block(std::string_view text) {
  for (std::size_t at; (at = text.find('\n')) != std::string_view::npos; text.remove_prefix(at + 1)) {
    if (held_.empty()) {
      parse_lines(text.substr(0, at));
    } else {
      held_ += text.substr(0, at);
      parse_lines(std::exchange(held_, ""));
    }
  }
  held_ += text;
  if (held_.size() > kLongestLine)
    fail(name_, ":", line_ + 1, ": this line is longer than a gigabyte; a JSON Lines file has one object per line");
}

void JsonLines::on_end_of_file() {
  if (!held_.empty()) parse_lines(std::exchange(held_, ""));
}

}  // namespace ring
