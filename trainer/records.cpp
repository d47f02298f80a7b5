#include "trainer/records.h"

#include <fcntl.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>

#include "core/check.h"
#include "core/regular_file.h"

namespace ring {
namespace {

using Json = nlohmann::ordered_json;

constexpr int kMostDepth = 16;  // of objects in objects

Record::Value value_of(const Json& json) {
  if (json.is_boolean()) return json.get<bool>();
  if (json.is_string()) return json.get<std::string>();
  if (json.is_number_unsigned() && json.get<std::uint64_t>() > std::numeric_limits<std::int64_t>::max())
    return json.get<double>();
  if (json.is_number_integer()) return json.get<std::int64_t>();
  if (json.is_number()) return json.get<double>();
  return std::monostate{};
}

// The number that "loss_text" names beside "loss": null.
std::optional<double> not_finite(const Json& object, const std::string& key) {
  const auto text = object.find(key + "_text");
  if (text == object.end() || !text->is_string()) return std::nullopt;
  const std::string name = text->get<std::string>();
  if (name == "nan") return std::numeric_limits<double>::quiet_NaN();
  if (name == "inf") return std::numeric_limits<double>::infinity();
  if (name == "-inf") return -std::numeric_limits<double>::infinity();
  return std::nullopt;
}

bool names_another(const Json& object, const std::string& key) {
  if (!key.ends_with("_text")) return false;
  const std::string other = key.substr(0, key.size() - std::strlen("_text"));
  const auto value = object.find(other);
  return value != object.end() && value->is_null() && not_finite(object, other);
}

void flatten(const Json& json, const std::string& prefix, int depth, Record& record) {
  if (depth > kMostDepth) return;
  const auto add = [&](const std::string& name, const Json& value) {
    if (value.is_structured()) return flatten(value, name + ".", depth + 1, record);
    record.values.emplace_back(name, value_of(value));
  };
  if (json.is_array())
    for (std::size_t i = 0; i < json.size(); ++i) add(prefix + std::to_string(i), json[i]);
  if (!json.is_object()) return;
  for (const auto& [key, value] : json.items()) {
    const bool known = depth == 0 && (key == "step" || key == "group" || key == "time");
    if (known || names_another(json, key)) continue;
    const std::optional<double> number = value.is_null() ? not_finite(json, key) : std::nullopt;
    if (number)
      record.values.emplace_back(prefix + key, *number);
    else
      add(prefix + key, value);
  }
}

std::optional<Record> record_of(const std::string& line) {
  const Json json = Json::parse(line, nullptr, false);
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

RecordCount read_records(const std::string& file, const std::function<void(const Record&)>& fn) {
  check_regular("read", file, O_RDONLY);
  std::ifstream in(file, std::ios::binary);  // opens: checked
  RecordCount count;
  for (std::string line; std::getline(in, line) && !in.eof();) {
    const std::optional<Record> record = record_of(line);
    ++(record ? count.read : count.damaged);
    if (record) fn(*record);
  }
  if (in.bad()) fail("cannot read ", file);
  return count;
}

}  // namespace ring
