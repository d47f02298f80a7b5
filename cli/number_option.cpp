#include "cli/number_option.h"

#include <CLI/CLI.hpp>
#include <concepts>
#include <type_traits>
#include <vector>

#include "core/byte_size.h"
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

// Suggests a unit for a bare number that is too small: nobody has 80 bytes of memory.
std::string unit_hint(const std::string& text, const Check& range) {
  std::int64_t bytes = 0;
  if (text.find_first_not_of("0123456789.") != std::string::npos) return "";
  for (const char* unit : {"GB", "MB"})
    if (parse_bytes(text + unit, bytes).empty() && range.passes(bytes)) return str("; did you mean ", text, unit, "?");
  return "";
}

CLI::Validator bytes_in(std::uint64_t least, std::uint64_t most) {
  const Check range = in_bytes(static_cast<long double>(least), static_cast<long double>(most));
  const auto read = [=](std::string& text) -> std::string {
    std::int64_t bytes = 0;
    if (const std::string wrong = parse_bytes(text, bytes); !wrong.empty()) return wrong;
    if (!range.passes(bytes)) return str("must be ", range.text, ", is ", shown(text), unit_hint(text, range));
    text = std::to_string(bytes);
    return "";
  };
  return {read, range.text};
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
