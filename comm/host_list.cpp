#include "comm/host_list.h"

#include "core/check.h"

namespace ring {
namespace {

constexpr int kMaxHosts = 1 << 20;

// "n[09-11,20]x" -> every host; brackets do not nest.
void expand_one(const std::string& text, std::vector<std::string>& out) {
  const std::size_t open = text.find('[');
  if (open == std::string::npos) {
    if (text.find(']') != std::string::npos || text.empty()) fail("host list: '", text, "' is malformed");
    out.push_back(text);
    return;
  }
  const std::size_t close = text.find(']', open);
  if (close == std::string::npos) fail("host list: '", text, "' lacks a ]");
  const std::string head = text.substr(0, open), tail = text.substr(close + 1);
  std::string ranges = text.substr(open + 1, close - open - 1) + ",";
  for (std::size_t at = 0, comma; (comma = ranges.find(',', at)) != std::string::npos; at = comma + 1) {
    const std::string range = ranges.substr(at, comma - at);
    const std::size_t dash = range.find('-');
    const std::string low = range.substr(0, dash), high = dash == std::string::npos ? low : range.substr(dash + 1);
    const auto digits = [](const std::string& s) {
      return !s.empty() && s.size() <= 9 && s.find_first_not_of("0123456789") == std::string::npos;
    };
    if (!digits(low) || !digits(high) || std::stoi(low) > std::stoi(high))
      fail("host list: '", range, "' in '", text, "'");
    if (std::stoi(high) - std::stoi(low) >= kMaxHosts) fail("host list: '", range, "' has too many hosts");
    for (int n = std::stoi(low); n <= std::stoi(high); ++n) {
      std::string number = std::to_string(n);
      number.insert(0, low.size() > number.size() ? low.size() - number.size() : 0, '0');
      if (tail.empty())
        out.push_back(head + number);
      else
        expand_one(head + number + tail, out);
    }
  }
}

}  // namespace

std::vector<std::string> expand_host_list(const std::string& text) {
  std::vector<std::string> out;
  if (text.empty()) return out;
  std::string part;
  bool inside = false;
  for (const char c : text + ",") {
    if (c == ',' && !inside) {
      expand_one(part, out);
      part.clear();
      continue;
    }
    inside = c == '[' || (inside && c != ']');
    part += c;
  }
  if (!part.empty()) fail("host list: '", text, "' lacks a ]");
  return out;
}

}  // namespace ring
