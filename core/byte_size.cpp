#include "core/byte_size.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <limits>
#include <optional>
#include <string_view>

#include "core/check.h"
#include "core/fields_parse.h"

namespace ring {
namespace {

struct Unit {
  std::string_view name;
  std::int64_t bytes;
};
constexpr std::array<Unit, 14> kUnits = {{{"", 1},
                                          {"b", 1},
                                          {"k", 1000},
                                          {"kb", 1000},
                                          {"kib", 1 << 10},
                                          {"m", 1'000'000},
                                          {"mb", 1'000'000},
                                          {"mib", 1 << 20},
                                          {"g", 1'000'000'000},
                                          {"gb", 1'000'000'000},
                                          {"gib", 1 << 30},
                                          {"t", 1'000'000'000'000},
                                          {"tb", 1'000'000'000'000},
                                          {"tib", std::int64_t{1} << 40}}};
constexpr std::string_view kInBytes = " bytes";
constexpr std::string_view kShareOr = "a share in [0, 1] or a size such as 80GB, ";

const Unit* unit_named(std::string name) {
  name.erase(0, name.find_first_not_of(' '));
  std::transform(name.begin(), name.end(), name.begin(), [](unsigned char c) { return std::tolower(c); });
  const auto* const unit = std::ranges::find(kUnits, name, &Unit::name);
  return unit == kUnits.end() ? nullptr : &*unit;
}

// Converts a decimal fraction of a unit to bytes, rounded down: with 10^9 bytes as the unit, "1.5" gives 1,500,000,000.
// Returns nullopt if `text` is not a decimal fraction, if the unit is one byte, or if the result does not fit.
std::optional<std::int64_t> bytes_of_fraction(const std::string& text, std::int64_t unit) {
  // Maximum digits on each side of the dot; keeps the products below within 128 bits.
  constexpr std::size_t kMaxDigits = 18;
  const std::size_t dot = text.find('.');
  if (unit == 1 || dot == std::string::npos) return {};
  const std::string whole = text.substr(0, dot), part = text.substr(dot + 1);
  if (part.empty() || std::max(whole.size(), part.size()) > kMaxDigits) return {};
  if ((whole + part).find_first_not_of("0123456789") != std::string::npos) return {};
  __extension__ using Int128 = __int128;
  Int128 scale = 1;
  for (std::size_t i = 0; i < part.size(); ++i) scale *= 10;
  const Int128 bytes = Int128{std::stoll("0" + whole)} * unit + Int128{std::stoll(part)} * unit / scale;
  if (bytes > std::numeric_limits<std::int64_t>::max()) return {};
  return static_cast<std::int64_t>(bytes);
}

}  // namespace

std::string parse_bytes(const std::string& text, std::int64_t& bytes) {
  const std::size_t letters = std::min(text.find_last_of("0123456789.") + 1, text.size());
  const Unit* unit = unit_named(text.substr(letters));
  if (const auto fraction = unit ? bytes_of_fraction(text.substr(0, letters), unit->bytes) : std::nullopt)
    return bytes = *fraction, "";
  config::Node node;
  node.kind = config::Kind::integer;
  YamlNode number;
  number.type = YamlNode::Type::scalar;
  number.text = text.substr(0, letters);
  config::Value value;
  if (!unit || !config::parse_value(node, number, value).empty())
    return str("expected bytes, such as 50MB or 1GiB, got ", shown(text));
  const std::int64_t count = std::get<std::int64_t>(value), max = std::numeric_limits<std::int64_t>::max();
  if (count > max / unit->bytes || count < -max / unit->bytes)
    return str("expected at most ", max, " bytes, got ", shown(text));
  bytes = count * unit->bytes;
  return "";
}

Check bytes_in_range(long double min, long double max) {
  Check check = in_range(min, max);
  check.text += kInBytes;
  return check;
}

bool is_byte_range(const Check& check) { return check.text.ends_with(kInBytes); }

Check share_or_bytes(long double min, long double max) {
  const Check bytes = bytes_in_range(min, max);
  Check check = check_number(str(kShareOr, bytes.text),
                             [=](long double v) { return (v >= 0 && v <= 1) || (v >= min && v <= max); });
  check.min = 0;
  check.max = max;
  return check;
}

std::string one_byte_problem(const std::string& text, std::int64_t bytes, const std::vector<Check>& checks) {
  const auto share = std::ranges::find_if(checks, [](const Check& c) { return c.text.starts_with(kShareOr); });
  return share != checks.end() && bytes == 1 ? str("must be ", share->text, ", is ", shown(text)) : "";
}

}  // namespace ring
