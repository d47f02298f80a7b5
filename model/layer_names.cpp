#include "model/layer_names.h"

#include <algorithm>
#include <charconv>
#include <optional>
#include <sstream>
#include <string_view>

#include "core/check.h"
#include "core/yaml.h"

namespace ring {
namespace {

constexpr std::size_t kLongestLayers = 4096;  // maximum characters of a layer list
constexpr const char* kLayersSyntax = "Write numbers, ranges or steps: 0, 4-7, every 4 from 3";

// Consumes words, numbers and surrounding blanks from the front of a text.
class Scanner {
 public:
  explicit Scanner(std::string_view text) : rest_(text) { skip(); }
  bool done() const { return rest_.empty(); }
  bool take(std::string_view word) {
    if (!rest_.starts_with(word)) return false;
    rest_.remove_prefix(word.size());
    return skip(), true;
  }
  std::optional<std::int64_t> number() {
    std::int64_t n = 0;
    const auto [end, error] = std::from_chars(rest_.data(), rest_.data() + rest_.size(), n);
    const auto digits = static_cast<std::size_t>(end - rest_.data());
    if (error != std::errc() || digits > 6 || n < 0) return {};
    rest_.remove_prefix(digits);
    return skip(), n;
  }

 private:
  void skip() { rest_.remove_prefix(std::min(rest_.find_first_not_of(' '), rest_.size())); }
  std::string_view rest_;
};

struct LayerRange {
  std::int64_t first = 0, last = 0, step = 1;
};

// Parses "4", "4-7", "every 4" or "every 4 from 3"; nullopt if it is none of these.
std::optional<LayerRange> parse_layer_range(std::string_view item, std::int64_t layers) {
  Scanner in(item);
  LayerRange r;
  const bool every = in.take("every");
  const std::optional<std::int64_t> number = in.number();
  if (!number) return {};
  if (every) {
    const std::optional<std::int64_t> from = in.take("from") ? in.number() : std::optional<std::int64_t>(0);
    if (!from) return {};
    r = {*from, layers - 1, *number};
  } else {
    const std::optional<std::int64_t> last = in.take("-") ? in.number() : number;
    if (!last) return {};
    r = {*number, *last, 1};
  }
  return in.done() ? std::optional(r) : std::nullopt;
}

}  // namespace

std::vector<std::int64_t> parse_layer_list(const std::string& text, std::int64_t layers) {
  if (text.size() > kLongestLayers)
    fail("a text of ", text.size(), " characters, but at most ", kLongestLayers, " are allowed. ", kLayersSyntax);
  std::vector<std::int64_t> named;
  std::vector<bool> known(static_cast<std::size_t>(layers));
  std::istringstream items(text);
  for (std::string item; std::getline(items, item, ',');) {
    const std::optional<LayerRange> r = parse_layer_range(item, layers);
    if (!r) fail("\"", shown(item), "\" names no layers. ", kLayersSyntax);
    if (r->first >= layers || r->last >= layers || r->first > r->last || r->step < 1)
      fail("\"", item, "\" names layers that do not exist: there are ", layers, ", from 0 to ", layers - 1);
    for (std::int64_t i = r->first; i <= r->last; i += r->step) {
      if (!known[static_cast<std::size_t>(i)]) named.push_back(i);
      known[static_cast<std::size_t>(i)] = true;
    }
  }
  if (named.empty()) fail("\"", text, "\" names no layers. ", kLayersSyntax);
  return named;
}

std::string layers_text(const std::vector<std::int64_t>& layers) {
  std::string text;
  for (std::size_t i = 0, end = 0; i < layers.size(); i = end) {
    for (end = i + 1; end < layers.size() && layers[end] == layers[end - 1] + 1;) ++end;
    text += str(i ? "," : "", layers[i], end > i + 1 ? str("-", layers[end - 1]) : "");
  }
  return text;
}

}  // namespace ring
