#pragma once
// Reads metrics.jsonl, even while a run writes it.

#include <cstdint>
#include <functional>
#include <istream>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

namespace ring {

struct Record {
  using Value = std::variant<std::monostate, bool, std::int64_t, double, std::string>;  // monostate means null

  std::int64_t step = 0;
  std::string group;
  double time = 0;  // seconds since 1970; 0 if not recorded
  // All other values, in the order of the line. Names of nested values have dots: "a.b", "list.0". A non-finite number
  // is stored as such; the "_text" value beside it is dropped.
  std::vector<std::pair<std::string, Value>> values;

  const Value* find(const std::string& name) const;             // returns null if there is none
  std::optional<double> number(const std::string& name) const;  // returns nullopt if there is none
  std::string text(const std::string& name) const;              // returns "" if there is none
};

struct RecordCount {
  std::int64_t read = 0;
  std::int64_t damaged = 0;  // lines that are not valid records
};

// Calls fn for each record, in the order of the file. Ignores a last line without a newline: it is incomplete, perhaps
// still being written. Throws Error if the file cannot be read.
RecordCount read_records(const std::string& file, const std::function<void(const Record&)>& fn);

inline constexpr std::size_t kMaxMetricsLine = std::size_t{64} << 20;  // in bytes; a longer line counts as damaged

// Reads the next line without its newline, like std::getline(), but keeps only max_bytes + 1 bytes of a longer line.
bool read_metrics_line(std::istream&, std::string& line, std::size_t max_bytes = kMaxMetricsLine);

// Returns the object that a line of metrics.jsonl holds, or null if the line is damaged.
nlohmann::ordered_json parse_metrics_line(const std::string& line);

}  // namespace ring
