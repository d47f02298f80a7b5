#include "trainer/records.h"

#include <fcntl.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <string_view>

#include "core/check.h"
#include "core/files.h"
#include "core/json.h"
#include "core/regular_file.h"

namespace ring {
namespace {

using Json = nlohmann::ordered_json;

constexpr int kMaxDepth = 16;  // maximum depth of nested objects
constexpr std::size_t kMaxEntries = std::size_t{1} << 20;
constexpr std::string_view kText = "_text";

Record::Value value_of(const Json& json) {
  if (json.is_boolean()) return json.get<bool>();
  if (json.is_string()) return json.get<std::string>();
  if (json.is_number_unsigned() && json.get<std::uint64_t>() > std::numeric_limits<std::int64_t>::max())
    return json.get<double>();
  if (json.is_number_integer()) return json.get<std::int64_t>();
  if (json.is_number()) return json.get<double>();
  return std::monostate{};
}

std::optional<double> not_finite(const Json& name) {
  if (name == "nan") return std::numeric_limits<double>::quiet_NaN();
  if (name == "inf") return std::numeric_limits<double>::infinity();
  if (name == "-inf") return -std::numeric_limits<double>::infinity();
  return std::nullopt;
}

// Returns the non-finite numbers by key: "loss_text" gives the number for "loss": null.
std::map<std::string, double> not_finite_in(const Json& object) {
  std::set<std::string> nulls;
  for (const auto& [key, value] : object.items())
    if (value.is_null()) nulls.insert(key);
  std::map<std::string, double> numbers;
  if (nulls.empty()) return numbers;
  for (const auto& [text_key, value] : object.items()) {
    if (!text_key.ends_with(kText)) continue;
    const std::string key = text_key.substr(0, text_key.size() - kText.size());
    if (const auto number = not_finite(value); number && nulls.contains(key)) numbers[key] = *number;
  }
  return numbers;
}

void flatten(const Json& json, const std::string& prefix, int depth, Record& record) {
  if (depth > kMaxDepth) return;
  const auto add = [&](const std::string& name, const Json& value) {
    if (value.is_structured()) return flatten(value, name + ".", depth + 1, record);
    record.values.emplace_back(name, value_of(value));
  };
  if (json.is_array())
    for (std::size_t i = 0; i < json.size(); ++i) add(prefix + std::to_string(i), json[i]);
  if (!json.is_object()) return;
  const std::map<std::string, double> numbers = not_finite_in(json);
  for (const auto& [key, value] : json.items()) {
    const bool known = depth == 0 && (key == "step" || key == "group" || key == "time");
    const bool names_another = key.ends_with(kText) && numbers.contains(key.substr(0, key.size() - kText.size()));
    if (known || names_another) continue;
    if (const auto number = numbers.find(key); number != numbers.end())
      record.values.emplace_back(prefix + key, number->second);
    else
      add(prefix + key, value);
  }
}

std::optional<Record> record_of(const std::string& line) {
  const Json json = parse_metrics_line(line);
  if (!json.is_object()) return std::nullopt;
  const auto step = json.find("step"), group = json.find("group"), time = json.find("time");
  if (step == json.end() || !step->is_number_integer() || group == json.end() || !group->is_string())
    return std::nullopt;
  Record record{step->get<std::int64_t>(), group->get<std::string>(), 0, {}};
  if (time != json.end() && time->is_number()) record.time = time->get<double>();
  flatten(json, "", 0, record);
  return record;
}

}  // namespace

const Record::Value* Record::find(const std::string& name) const {
  const auto at = std::ranges::find(values, name, [](const auto& v) { return v.first; });
  return at == values.end() ? nullptr : &at->second;
}

std::optional<double> Record::number(const std::string& name) const {
  const Value* value = find(name);
  if (!value) return std::nullopt;
  if (const auto* n = std::get_if<double>(value)) return *n;
  if (const auto* n = std::get_if<std::int64_t>(value)) return static_cast<double>(*n);
  return std::nullopt;
}

std::string Record::text(const std::string& name) const {
  const Value* value = find(name);
  const auto* text = value ? std::get_if<std::string>(value) : nullptr;
  return text ? *text : "";
}

bool read_metrics_line(std::istream& in, std::string& line, std::size_t max_bytes) {
  line.clear();
  try {
    for (int c; (c = in.rdbuf()->sbumpc()) != std::char_traits<char>::eof();) {
      if (c == '\n') return true;
      if (line.size() <= max_bytes) line += static_cast<char>(c);
    }
    in.setstate(std::ios::eofbit);
  } catch (const std::ios_base::failure&) {  // thrown for file system errors
    in.setstate(std::ios::badbit);
  }
  return !line.empty();
}

Json parse_metrics_line(const std::string& line) {
  try {
    Json json = parse_json<Json>(line, {.bytes = kMaxMetricsLine, .entries = kMaxEntries});
    return json.is_object() ? json : Json();
  } catch (const JsonStopped&) {
    throw;
  } catch (const Error&) {
    return nullptr;
  }
}

RecordCount read_records(const std::string& file, const std::function<void(const Record&)>& fn) {
  check_regular("read", file, O_RDONLY);
  std::ifstream in(file, std::ios::binary);  // allowed open: checked
  RecordCount count;
  for (std::string line; read_metrics_line(in, line) && !in.eof();) {
    const std::optional<Record> record = record_of(line);
    ++(record ? count.read : count.damaged);
    if (record) fn(*record);
  }
  if (in.bad()) fail("cannot read ", file);
  return count;
}

}  // namespace ring
