#include "core/number_list.h"

#include <charconv>
#include <sstream>

#include "core/check.h"

namespace ring {
namespace {

constexpr int kEnd = 1 << 16;

}  // namespace

std::optional<int> parse_int(std::string_view text) {
  int n = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), n);
  return error == std::errc{} && end == text.data() + text.size() ? std::optional(n) : std::nullopt;
}

std::optional<std::vector<int>> parse_number_list(const std::string& text) {
  std::vector<int> numbers;
  std::istringstream ranges(text);
  for (std::string range; std::getline(ranges, range, ',');) {
    const std::size_t dash = range.find('-');
    const auto low = parse_int(range.substr(0, dash));
    const auto high = dash == std::string::npos ? low : parse_int(range.substr(dash + 1));
    if (!low || !high || *low < 0 || *high < *low || *high >= kEnd) return {};
    for (int n = *low; n <= *high; ++n) numbers.push_back(n);
  }
  return numbers;
}

std::string format_number_list(const std::vector<int>& numbers) {
  std::string text;
  for (std::size_t first = 0, last = 0; first < numbers.size(); first = last) {
    for (last = first + 1; last < numbers.size() && numbers[last] == numbers[last - 1] + 1;) ++last;
    text += str(text.empty() ? "" : ",", numbers[first], last > first + 1 ? str("-", numbers[last - 1]) : "");
  }
  return text;
}

}  // namespace ring
