#include "tests/meta/definitions.h"

#include <algorithm>
#include <map>
#include <regex>
#include <set>

#include "core/joined.h"

namespace ring::test {
namespace {

// Tracks the open namespaces. Requires clang-format's layout: a namespace's contents begin in the first column, and its
// end names it.
class Namespaces {
 public:
  void pass(const std::string& line) {
    static const std::regex begin(R"(^(?:inline )?namespace(?: ([\w:]+))? \{)");
    std::smatch m;
    if (line.starts_with("}  // namespace")) {
      if (!open_.empty()) open_.pop_back();
    } else if (std::regex_search(line, m, begin)) {
      open_.push_back(m[1]);
    }
  }
  // Returns false inside unnamed namespaces, whose types are private to their file.
  bool shared() const { return std::ranges::find(open_, "") == open_.end(); }
  std::string prefix() const {
    std::string text;
    for (const std::string& name : open_) text += name + "::";
    return text;
  }

 private:
  std::vector<std::string> open_;
};

// Returns the type whose definition begins on the line; "" if there is none. Specialisations and nested types do not
// count: they have names of their own.
std::string type_in(const std::string& line) {
  static const std::regex type(R"(^(?:struct|class|union|enum(?: class)?) (\w+)(?: final)?(?: : .*)? *\{)");
  std::smatch m;
  return std::regex_search(line, m, type) ? m[1].str() : "";
}

}  // namespace

std::vector<std::string> types_defined_twice(const std::vector<SourceFile>& files) {
  std::map<std::string, std::set<std::string>> where;
  for (const SourceFile& file : files) {
    if (!is_source(file.path) || file.path.starts_with("tests/")) continue;
    Namespaces at;
    for (const std::string& line : lines_of(file.text)) {
      at.pass(line);
      if (const std::string name = type_in(line); !name.empty() && at.shared())
        where[at.prefix() + name].insert(file.path);
    }
  }
  std::vector<std::string> twice;
  for (const auto& [name, paths] : where)
    if (paths.size() > 1) twice.push_back(name + ": " + joined({paths.begin(), paths.end()}, ", "));
  return twice;
}

}  // namespace ring::test
