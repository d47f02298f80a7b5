#include "cli/number_option.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <cctype>
#include <concepts>
#include <string_view>
#include <type_traits>
#include <vector>

#include "core/check.h"
#include "core/fields.h"
#include "core/fields_parse.h"

namespace ring {
namespace {

// Fills `value`; returns what is wrong.
std::string parse_number(const std::string& text, bool whole, const Check& range, config::Value& value) {
  config::Node node;
  node.kind = whole ? config::Kind::integer : config::Kind::number;
  YamlNode scalar;
  scalar.type = YamlNode::Type::scalar;
  scalar.text = text;
  const std::string wrong = config::parse_value(node, scalar, value);
  if (!wrong.empty() || range.passes(value)) return wrong;
  return str("must be ", range.text, ", is ", shown(text));
}

struct Unit {
  std::string_view name;
  std::uint64_t bytes;
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
                                          {"tib", std::uint64_t{1} << 40}}};

// What it lets through it rewrites in digits, which CLI11 takes over exactly.
CLI::Validator number_in(bool whole, long double least, long double most) {
  const Check range = in_range(least, most);
  const auto read = [=](std::string& text) {
    config::Value value;
    std::string wrong = parse_number(text, whole, range, value);
    if (wrong.empty()) text = config::to_text(value);
    return wrong;
  };
  return {read, range.text};
}

CLI::Validator bytes_in(std::uint64_t least, std::uint64_t most) {
  const Check range = in_range(static_cast<long double>(least), static_cast<long double>(most));
  const auto read = [=](std::string& text) -> std::string {
    const std::size_t letters = std::min(text.find_last_of("0123456789.") + 1, text.size());
    std::string name = text.substr(letters);
    name.erase(0, name.find_first_not_of(' '));
    std::transform(name.begin(), name.end(), name.begin(), [](unsigned char c) { return std::tolower(c); });
    const auto unit = std::find_if(kUnits.begin(), kUnits.end(), [&](const Unit& u) { return u.name == name; });
    if (unit == kUnits.end()) return str("expected bytes, such as 50MB or 1GiB, got ", shown(text));
    const Check in_units = in_range(0, static_cast<long double>(most / unit->bytes));
    config::Value value;
    if (const std::string wrong = parse_number(text.substr(0, letters), true, in_units, value); !wrong.empty())
      return wrong;
    value = std::get<std::int64_t>(value) * static_cast<std::int64_t>(unit->bytes);
    if (!range.passes(value)) return str("must be ", range.text, " bytes, is ", shown(text));
    text = config::to_text(value);
    return "";
  };
  return {read, range.text + " bytes"};
}

template <class T>
struct ElementOf {
  using type = T;
};
template <class T>
struct ElementOf<std::vector<T>> {
  using type = T;
};

}  // namespace

template <class T>
CLI::Option* add_number(CLI::App& command, const std::string& name, T& value, const std::string& text,
                        long double least, long double most) {
  using Number = typename ElementOf<T>::type;
  using Limits = std::numeric_limits<Number>;
  RING_CHECK(least >= Limits::lowest() && most <= Limits::max(), name, ": its range does not fit into its type");
  CLI::Option* option = command.add_option(name, value, text);
  option->transform(number_in(std::integral<Number>, least, most), kNumberValidator);
  if constexpr (!std::is_same_v<T, Number>) option->delimiter(',');
  return option;
}

CLI::Option* add_bytes(CLI::App& command, const std::string& name, std::uint64_t& value, const std::string& text,
                       std::uint64_t least, std::uint64_t most) {
  return command.add_option(name, value, text)->transform(bytes_in(least, most), kNumberValidator);
}

template CLI::Option* add_number(CLI::App&, const std::string&, int&, const std::string&, long double, long double);
template CLI::Option* add_number(CLI::App&, const std::string&, std::int64_t&, const std::string&, long double,
                                 long double);
template CLI::Option* add_number(CLI::App&, const std::string&, std::uint64_t&, const std::string&, long double,
                                 long double);
template CLI::Option* add_number(CLI::App&, const std::string&, double&, const std::string&, long double, long double);
template CLI::Option* add_number(CLI::App&, const std::string&, std::vector<int>&, const std::string&, long double,
                                 long double);
template CLI::Option* add_number(CLI::App&, const std::string&, std::vector<std::int64_t>&, const std::string&,
                                 long double, long double);
template CLI::Option* add_number(CLI::App&, const std::string&, std::vector<double>&, const std::string&, long double,
                                 long double);

}  // namespace ring
