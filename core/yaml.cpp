#include "core/yaml.h"

#include <yaml-cpp/eventhandler.h>
#include <yaml-cpp/exceptions.h>
#include <yaml-cpp/mark.h>
#include <yaml-cpp/parser.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <map>
#include <sstream>
#include <string_view>

namespace ring {
namespace {

int line_of(const YAML::Mark& mark) { return mark.is_null() ? 0 : mark.line + 1; }

// Builds the tree from the parser's events. Each event is checked against the limits before it is stored. Does not
// recurse.
class TreeBuilder : public YAML::EventHandler {
 public:
  bool empty() const { return root_.type == YamlNode::Type::null; }
  int line() const { return line_; }
  YamlNode take() { return std::move(root_); }

  void OnDocumentStart(const YAML::Mark& mark) override { line_ = line_of(mark); }
  void OnDocumentEnd() override {}
  void OnNull(const YAML::Mark& mark, YAML::anchor_t anchor) override {
    YamlNode node;
    node.line = line_of(mark);
    charge(node.line, node.text.size());
    complete(std::move(node), anchor);
  }
  void OnScalar(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                const std::string& value) override {
    YamlNode node;
    node.type = YamlNode::Type::scalar;
    node.line = line_of(mark);
    node.text = value;
    node.quoted = tag == "!" || tag == "tag:yaml.org,2002:str";
    charge(node.line, node.text.size());
    complete(std::move(node), anchor);
  }
  void OnAlias(const YAML::Mark& mark, YAML::anchor_t anchor) override {
    const auto named = anchors_.find(anchor);
    if (named == anchors_.end()) throw YamlError(line_of(mark), "an alias occurs inside the value that it stands for");
    charge_all(named->second, line_of(mark));
    place(named->second, line_of(mark));
  }
  void OnSequenceStart(const YAML::Mark& mark, const std::string&, YAML::anchor_t anchor,
                       YAML::EmitterStyle::value) override {
    open(mark, YamlNode::Type::list, anchor);
  }
  void OnMapStart(const YAML::Mark& mark, const std::string&, YAML::anchor_t anchor,
                  YAML::EmitterStyle::value) override {
    open(mark, YamlNode::Type::map, anchor);
  }
  void OnSequenceEnd() override { close(); }
  void OnMapEnd() override { close(); }

 private:
  struct Open {
    YamlNode node;
    YAML::anchor_t anchor;
    bool has_key = false;  // maps: the last entry has no value yet
  };

  void charge(int line, std::size_t bytes) {
    bytes_ += bytes;
    if (++nodes_ > kMaxYamlNodes || bytes_ > kMaxYamlBytes)
      throw YamlError(line, str("too large: more than ", kMaxYamlNodes, " values or ", kMaxYamlBytes,
                                " bytes of them, counting each alias as the value that it stands for"));
  }

  void charge_all(const YamlNode& node, int line) {
    charge(line, node.text.size());
    for (const YamlNode& item : node.items) charge_all(item, line);
    for (const YamlNode::Entry& entry : node.entries) {
      charge(line, entry.key.size());
      charge_all(entry.value, line);
    }
  }

  void open(const YAML::Mark& mark, YamlNode::Type type, YAML::anchor_t anchor) {
    YamlNode node;
    node.type = type;
    node.line = line_of(mark);
    charge(node.line, 0);
    if (open_.size() >= kMaxYamlDepth)
      throw YamlError(node.line, str("too deep: more than ", kMaxYamlDepth, " nested lists and sections"));
    open_.push_back({std::move(node), anchor});
  }

  void close() {
    Open done = std::move(open_.back());
    open_.pop_back();
    complete(std::move(done.node), done.anchor);
  }

  void complete(YamlNode node, YAML::anchor_t anchor) {
    const int line = node.line;
    if (anchor != 0) {
      charge_all(node, line);  // counts the copy that anchors_ keeps
      anchors_.insert_or_assign(anchor, node);
    }
    place(std::move(node), line);
  }

  // Adds a node to the innermost open list or map, or makes it the root.
  void place(YamlNode node, int line) {
    if (open_.empty()) {
      root_ = std::move(node);
      return;
    }
    Open& parent = open_.back();
    if (parent.node.type == YamlNode::Type::list) {
      parent.node.items.push_back(std::move(node));
    } else if (!std::exchange(parent.has_key, !parent.has_key)) {
      if (node.type != YamlNode::Type::scalar) throw YamlError(line, "a key must be a name");
      parent.node.entries.push_back({std::move(node.text), line, {}});
    } else {
      parent.node.entries.back().value = std::move(node);
    }
  }

  YamlNode root_;
  int line_ = 0, nodes_ = 0;
  std::size_t bytes_ = 0;
  std::vector<Open> open_;
  std::map<YAML::anchor_t, YamlNode> anchors_;
};

// Returns true for plain text that some YAML reader takes for a bool, null or number.
bool ambiguous(const std::string& s) {
  static constexpr std::array<std::string_view, 9> kWords = {"null", "true", "false", "yes", "no",
                                                             "on",   "off",  "y",     "n"};
  std::string lower = s;
  std::transform(s.begin(), s.end(), lower.begin(), [](unsigned char c) { return std::tolower(c); });
  if (std::find(kWords.begin(), kWords.end(), lower) != kWords.end()) return true;
  return s[0] == '.' || s[0] == '+' || (s[0] >= '0' && s[0] <= '9');
}

bool bare(const std::string& s) {
  const auto plain = [](unsigned char c) { return std::isalnum(c) || c == '_' || c == '/' || c == '.' || c == '-'; };
  return !s.empty() && s[0] != '-' && std::all_of(s.begin(), s.end(), plain) && !ambiguous(s);
}

void append_escaped(std::string& out, unsigned char c) {
  static constexpr char kHex[] = "0123456789abcdef";
  if (c == '"' || c == '\\') {
    out += '\\';
    out += static_cast<char>(c);
  } else if (c == '\n') {
    out += "\\n";
  } else if (c == '\t') {
    out += "\\t";
  } else if (c < 0x20 || c == 0x7f) {
    out += "\\x";
    out += kHex[c >> 4];
    out += kHex[c & 15];
  } else {
    out += static_cast<char>(c);
  }
}

}  // namespace

std::string YamlNode::describe() const {
  switch (type) {
    case Type::null: return "nothing";
    case Type::scalar: return quoted ? "the quoted string \"" + shown(text) + "\"" : shown(text);
    case Type::list: return "a list";
    case Type::map: return "a section";
  }
  return "?";
}

namespace {

constexpr const char* kNoTabs = "; the line begins with a tab: indent with spaces";

bool begins_with_tab(const std::string& text, int line) {
  std::istringstream lines(text);
  std::string words;
  for (int n = 0; n < line && std::getline(lines, words);) ++n;
  const std::size_t at = words.find_first_not_of(' ');
  return at != std::string::npos && words[at] == '\t';
}

}  // namespace

YamlNode parse_yaml(const std::string& text) {
  if (text.size() > kMaxYamlBytes)
    throw YamlError(0, str("too large: ", text.size(), " bytes, but at most ", kMaxYamlBytes, " are allowed"));
  try {
    std::istringstream in(text);
    YAML::Parser parser(in);
    TreeBuilder first, second;
    if (!parser.HandleNextDocument(first)) return {};
    if (parser.HandleNextDocument(second) && !second.empty())
      throw YamlError(second.line(), "expected one YAML document, but a second one starts here");
    return first.take();
  } catch (const YAML::Exception& e) {
    const int line = line_of(e.mark);
    throw YamlError(line, "not valid YAML: " + e.msg + (begins_with_tab(text, line) ? kNoTabs : ""));
  }
}

std::string shown(const std::string& text, std::size_t max) {
  std::size_t end = std::min(text.size(), max);
  // Keeps UTF-8 characters whole.
  while (end < text.size() && end > 0 && (static_cast<unsigned char>(text[end]) & 0xC0) == 0x80) --end;
  std::string out;
  for (const char c : text.substr(0, end)) {
    if (c == '"' || c == '\\')
      out += c;
    else
      append_escaped(out, static_cast<unsigned char>(c));
  }
  return end < text.size() ? str(out, "... (", text.size(), " bytes)") : out;
}

std::string yaml_string(const std::string& s) {
  if (bare(s)) return s;
  std::string out = "\"";
  for (const char c : s) append_escaped(out, static_cast<unsigned char>(c));
  return out + '"';
}

std::string yaml_number(double v) {
  if (std::isnan(v)) return ".nan";
  if (std::isinf(v)) return v > 0 ? ".inf" : "-.inf";
  std::array<char, 32> buffer;
  std::string text(buffer.data(), std::to_chars(buffer.data(), buffer.data() + buffer.size(), v).ptr);
  const std::size_t e = text.find('e');
  if (e == std::string::npos) return text;
  const std::size_t digits = text.find_first_not_of('0', e + 2);  // 3e-04 -> 3e-4, 1e+06 -> 1e6
  return text.substr(0, e + 1) + (text[e + 1] == '-' ? "-" : "") + text.substr(digits);
}

}  // namespace ring
