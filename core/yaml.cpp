#include "core/yaml.h"

#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <string_view>

namespace ring {
namespace {

constexpr int kMaxDepth = 64;
constexpr int kMaxNodes = 1'000'000;  // aliases of aliases grow exponentially

int line_of(const YAML::Mark& mark) { return mark.is_null() ? 0 : mark.line + 1; }

class Converter {
 public:
  YamlNode convert(const YAML::Node& in, int depth = 0) {
    const int line = line_of(in.Mark());
    if (depth > kMaxDepth || ++nodes_ > kMaxNodes) throw YamlError(line, "too deep or too large, check its aliases");
    YamlNode out;
    out.line = line;
    if (in.IsScalar()) scalar(in, out);
    if (in.IsSequence()) sequence(in, out, depth);
    if (in.IsMap()) map(in, out, depth);
    return out;
  }

 private:
  static void scalar(const YAML::Node& in, YamlNode& out) {
    out.type = YamlNode::Type::scalar;
    out.text = in.Scalar();
    out.quoted = in.Tag() == "!" || in.Tag() == "tag:yaml.org,2002:str";
  }

  void sequence(const YAML::Node& in, YamlNode& out, int depth) {
    out.type = YamlNode::Type::list;
    for (const auto& item : in) out.items.push_back(convert(item, depth + 1));
  }

  void map(const YAML::Node& in, YamlNode& out, int depth) {
    out.type = YamlNode::Type::map;
    for (const auto& entry : in) {
      const int line = line_of(entry.first.Mark());
      if (!entry.first.IsScalar()) throw YamlError(line, "a key must be a name");
      out.entries.push_back({entry.first.Scalar(), line, convert(entry.second, depth + 1)});
    }
  }

  int nodes_ = 0;
};

// Words and numbers that some YAML reader takes for something else than text.
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
    case Type::scalar: return quoted ? "the text " + yaml_text(text) + " in quotes" : text;
    case Type::list: return "a list";
    case Type::map: return "a section";
  }
  return "?";
}

YamlNode parse_yaml(const std::string& text) {
  std::vector<YAML::Node> documents;
  try {
    documents = YAML::LoadAll(text);
  } catch (const YAML::Exception& e) {
    throw YamlError(line_of(e.mark), "not valid YAML: " + e.msg);
  }
  if (documents.size() > 1) throw YamlError(line_of(documents[1].Mark()), "a second document starts here");
  return documents.empty() ? YamlNode() : Converter().convert(documents[0]);
}

std::string yaml_text(const std::string& s) {
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
  const std::size_t digits = text.find_first_not_of('0', e + 2);  // 3e-04 and 1e+06 read better as 3e-4 and 1e6
  return text.substr(0, e + 1) + (text[e + 1] == '-' ? "-" : "") + text.substr(digits);
}

}  // namespace ring
