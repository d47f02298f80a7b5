#include "tests/meta/cycles.h"

#include <algorithm>
#include <map>
#include <regex>
#include <set>

namespace ring::test {
namespace {

using Graph = std::map<std::string, std::set<std::string>>;

Graph graph_of(const std::vector<SourceFile>& files, const std::function<std::string(const std::string&)>& name_of) {
  static const std::regex quoted(R"re(#\s*include\s*"([^"]+)")re");
  std::set<std::string> known;
  for (const SourceFile& f : files) known.insert(f.path);
  Graph graph;
  for (const SourceFile& f : files) {
    if (!is_source(f.path) || f.path.starts_with("tests/")) continue;
    for (std::sregex_iterator m(f.text.begin(), f.text.end(), quoted), end; m != end; ++m)
      if (const std::string to = (*m)[1]; known.contains(to) && name_of(to) != name_of(f.path))
        graph[name_of(f.path)].insert(name_of(to));
  }
  return graph;
}

std::set<std::string> reached_from(const Graph& graph, const std::string& start) {
  std::set<std::string> reached;
  std::vector<std::string> open = {start};
  while (!open.empty()) {
    const auto next = graph.find(open.back());
    open.pop_back();
    if (next == graph.end()) continue;
    for (const std::string& to : next->second)
      if (reached.insert(to).second) open.push_back(to);
  }
  return reached;
}

}  // namespace

std::string unit_of(const std::string& path) { return path.substr(0, path.rfind('.')); }
std::string folder_of(const std::string& path) { return path.substr(0, path.rfind('/')); }

std::vector<std::string> include_cycles(const std::vector<SourceFile>& files,
                                        const std::function<std::string(const std::string&)>& name_of) {
  const Graph graph = graph_of(files, name_of);
  std::map<std::string, std::set<std::string>> reached;
  for (const auto& [name, to] : graph) reached[name] = reached_from(graph, name);
  std::set<std::string> lines;
  for (const auto& [name, all] : reached) {
    std::string line;
    for (const std::string& other : all)
      if (const auto back = reached.find(other); back != reached.end() && back->second.contains(name))
        line += (line.empty() ? "" : " ") + other;
    if (!line.empty()) lines.insert(line);
  }
  return {lines.begin(), lines.end()};
}

}  // namespace ring::test
