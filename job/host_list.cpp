#include "job/host_list.h"

#include <algorithm>
#include <charconv>
#include <cstdint>

#include "core/check.h"
#include "core/yaml.h"

namespace ring {
namespace {

constexpr std::size_t kMaxHosts = 1 << 16, kLongestName = 255;  // kLongestName is DNS's limit

struct Range {
  std::uint32_t low, high;
  std::size_t digits;  // minimum number of digits, padded with zeros
};

// Some text, then bracketed numbers; the last part of a name has no numbers.
struct Part {
  std::string text;
  std::vector<Range> ranges;
};

std::uint32_t number(const std::string& digits, const std::string& pattern) {
  std::uint32_t n = 0;
  const char* const end = digits.data() + digits.size();
  const auto [at, error] = std::from_chars(digits.data(), end, n);
  if (digits.empty() || digits.size() > 9 || error != std::errc() || at != end)
    fail("host list: '", shown(digits), "' in '", shown(pattern), "' is not a number of at most 9 digits");
  return n;
}

// Parses e.g. "09-11,20".
std::vector<Range> ranges_of(const std::string& text, const std::string& pattern) {
  std::vector<Range> ranges;
  for (std::size_t at = 0; at <= text.size();) {
    const std::size_t comma = std::min(text.find(',', at), text.size());
    const std::string range = text.substr(at, comma - at);
    const std::size_t dash = range.find('-');
    const std::string low = range.substr(0, dash), high = dash == std::string::npos ? low : range.substr(dash + 1);
    const Range r{number(low, pattern), number(high, pattern), low.size()};
    if (r.low > r.high) fail("host list: '", range, "' in '", shown(pattern), "' runs backwards");
    ranges.push_back(r);
    at = comma + 1;
  }
  return ranges;
}

// Parses e.g. "n[09-11,20]x"; brackets cannot be nested.
std::vector<Part> parts_of(const std::string& pattern) {
  std::vector<Part> parts;
  std::size_t at = 0;
  for (std::size_t open; (open = pattern.find('[', at)) != std::string::npos;) {
    const std::size_t close = pattern.find(']', open);
    if (close == std::string::npos) fail("host list: '", shown(pattern), "' lacks a ]");
    parts.push_back({pattern.substr(at, open - at), ranges_of(pattern.substr(open + 1, close - open - 1), pattern)});
    at = close + 1;
  }
  parts.push_back({pattern.substr(at), {}});
  for (const Part& part : parts)
    if (part.text.find(']') != std::string::npos) fail("host list: '", shown(pattern), "' has a ] without its [");
  if (pattern.empty()) fail("host list: a name is empty");
  return parts;
}

std::size_t longest_name(const std::vector<Part>& parts) {
  std::size_t length = 0;
  for (const Part& part : parts) {
    std::size_t digits = 0;
    for (const Range& r : part.ranges) digits = std::max({digits, r.digits, std::to_string(r.high).size()});
    length += part.text.size() + digits;
  }
  return length;
}

// Returns the number of names; max + 1 if there are more than `max`.
std::size_t count_names(const std::vector<Part>& parts, std::size_t max) {
  std::size_t count = 1;
  for (const Part& part : parts) {
    if (part.ranges.empty()) continue;
    std::size_t numbers = 0;  // cannot overflow: at most 10^9 x 2^17, for a list of 1 MiB
    for (const Range& r : part.ranges) numbers += std::size_t{r.high} - r.low + 1;
    if (numbers > max || count * numbers > max) return max + 1;
    count *= numbers;
  }
  return count;
}

std::vector<std::string> names_of(const std::vector<Part>& parts) {
  std::vector<std::string> names = {""};
  for (const Part& part : parts) {
    std::vector<std::string> longer;
    for (const std::string& name : names) {
      if (part.ranges.empty()) longer.push_back(name + part.text);
      for (const Range& r : part.ranges)
        for (std::uint32_t n = r.low; n <= r.high; ++n) {
          const std::string digits = std::to_string(n);
          const std::string zeros(r.digits > digits.size() ? r.digits - digits.size() : 0, '0');
          longer.push_back(name + part.text + zeros + digits);
        }
    }
    names = std::move(longer);
  }
  return names;
}

// Appends the hosts of a pattern. Checks the limits before expanding anything.
void expand(const std::string& pattern, std::vector<std::string>& hosts) {
  const std::vector<Part> parts = parts_of(pattern);
  if (longest_name(parts) > kLongestName)
    fail("host list: a name of '", shown(pattern), "' is longer than ", kLongestName, " characters");
  if (hosts.size() + count_names(parts, kMaxHosts) > kMaxHosts)
    fail("host list: '", shown(pattern), "': more than ", kMaxHosts, " hosts");
  for (std::string& name : names_of(parts)) hosts.push_back(std::move(name));
}

}  // namespace

std::vector<std::string> expand_host_list(const std::string& text) {
  std::vector<std::string> hosts;
  if (text.empty()) return hosts;
  std::string pattern;
  bool inside = false;
  for (const char c : text + ",") {
    if (c == ',' && !inside) {
      expand(pattern, hosts);
      pattern.clear();
      continue;
    }
    inside = c == '[' || (inside && c != ']');
    pattern += c;
  }
  if (!pattern.empty()) fail("host list: '", shown(text), "' lacks a ]");
  return hosts;
}

}  // namespace ring
