#include "trainer/metrics_csv.h"

#include <charconv>
#include <cmath>
#include <map>

#include "engine/run_directory.h"
#include "trainer/records.h"

namespace ring {
namespace {

constexpr const char* kEnd = "\r\n";

std::string quoted(const std::string& text) {
  if (text.find_first_of(",\"\r\n") == std::string::npos) return text;
  std::string out = "\"";
  for (const char c : text) out += c == '"' ? std::string("\"\"") : std::string(1, c);
  return out + "\"";
}

// Returns the shortest text that parses as the same number.
template <class Number>
std::string shortest(Number value) {
  char text[40];
  return {text, std::to_chars(text, text + sizeof text, value).ptr};
}

std::string cell(const Record::Value& value) {
  if (const auto* b = std::get_if<bool>(&value)) return *b ? "true" : "false";
  if (const auto* n = std::get_if<std::int64_t>(&value)) return shortest(*n);
  if (const auto* n = std::get_if<double>(&value)) return std::isnan(*n) ? "nan" : shortest(*n);
  if (const auto* text = std::get_if<std::string>(&value)) return quoted(*text);
  return "";
}

class Table {
 public:
  void add_keys(const Record& r) {
    for (const auto& [key, value] : r.values)
      if (columns_.emplace(key, columns_.size()).second) head_ += "," + quoted(key);
  }
  std::string head() const { return "run,step,group,time" + head_ + kEnd; }
  std::string row(const std::string& run, const Record& r) const {
    std::vector<std::string> cells(columns_.size());
    // Skips keys that a run began to write after add_keys() had read its file.
    for (const auto& [key, value] : r.values)
      if (const auto at = columns_.find(key); at != columns_.end()) cells[at->second] = cell(value);
    std::string out = quoted(run) + "," + shortest(r.step) + "," + quoted(r.group) + ",";
    if (r.time > 0) out += shortest(r.time);
    for (const std::string& c : cells) out += "," + c;
    return out + kEnd;
  }

 private:
  std::map<std::string, std::size_t> columns_;
  std::string head_;
};

}  // namespace

std::string metrics_csv(const std::vector<std::string>& runs) {
  Table table;
  for (const std::string& run : runs)
    read_records(RunDirectory(run).metrics_file(), [&](const Record& r) { table.add_keys(r); });
  std::string out = table.head();
  for (const std::string& run : runs)
    read_records(RunDirectory(run).metrics_file(), [&](const Record& r) { out += table.row(run, r); });
  return out;
}

}  // namespace ring
