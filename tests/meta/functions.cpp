#include "tests/meta/functions.h"

#include <algorithm>
#include <optional>
#include <regex>

namespace ring::test {
namespace {

// Replaces comments, strings and preprocessor lines by their line ends, so that only the program's own braces are left.
std::string bare(const std::string& text) {
  static const std::regex other(R"re(R"(\w*)\([^]*?\)\1"|//[^\n]*|"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])'|)re"
                                R"re((?:^|\n)[ \t]*#(?:[^\n]*\\\n)*[^\n]*)re");
  std::string out;
  auto from = text.cbegin();
  for (std::sregex_iterator m(text.begin(), text.end(), other), end; m != end; ++m) {
    out.append(from, (*m)[0].first);
    out.append(static_cast<std::size_t>(std::count((*m)[0].first, (*m)[0].second, '\n')), '\n');
    from = (*m)[0].second;
  }
  return out.append(from, text.cend());
}

// Returns whether the text before an opening brace is the head of a function, not of a type, a namespace or a list of
// values.
bool is_head(const std::string& statement) {
  static const std::regex scope(R"((^|[\s>])(namespace|class|struct|enum|union|extern)\b)");
  static const std::regex ends_as_function(R"(\)\s*(const|override|noexcept|final|\s)*$)");
  static const std::regex value(R"(=\s*$)");
  if (statement.find('(') == std::string::npos || std::regex_search(statement, value)) return false;
  return std::regex_search(statement, ends_as_function) || !std::regex_search(statement, scope);
}

class Scan {
 public:
  std::vector<Function> run(const std::string& text) {
    for (const char c : text) {
      line_ += c == '\n';
      if (c == '{')
        open();
      else if (c == '}')
        close();
      else if (!inside_)
        c == ';' ? statement_.clear() : add(c);
    }
    return found_;
  }

 private:
  void add(char c) {
    const bool blank = c == ' ' || c == '\n';
    if (statement_.empty() && blank) return;
    if (statement_.empty()) begin_ = line_;
    statement_ += c;
  }
  void open() {
    if (!inside_ && is_head(statement_)) inside_ = depth_;
    ++depth_;
    statement_.clear();
  }
  void close() {
    --depth_;
    if (inside_ == depth_) {
      found_.push_back({begin_, line_ - begin_ + 1});
      inside_.reset();
    }
    statement_.clear();
  }

  std::vector<Function> found_;
  std::string statement_;
  std::optional<int> inside_;  // the depth at which the function begins
  int depth_ = 0, line_ = 1, begin_ = 1;
};

}  // namespace

std::vector<Function> functions_of(const SourceFile& file) { return Scan().run(bare(file.text)); }

}  // namespace ring::test
