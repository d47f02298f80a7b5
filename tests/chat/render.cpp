// render TEMPLATE < REQUESTS: prints a line {"text": .., "generations": [[begin, end]..]} or {"error": ..} for each
// line of standard input, an object whose members are the template's variables. Without TEMPLATE: prints the built-in
// templates as one object. tests/chat/against_transformers.py reads the output.

#include <fstream>
#include <iostream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <sstream>

#include "core/check.h"
#include "text/chat/format.h"
#include "text/chat/template.h"

namespace {

using Json = nlohmann::ordered_json;

int print_named() {
  Json all;
  std::istringstream names(ring::chat::template_names());
  for (std::string name; std::getline(names >> std::ws, name, ',');) all[name] = ring::chat::named_template(name);
  std::cout << all.dump() << "\n";
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc == 1) return print_named();
  if (argc != 2) return 2;
  std::ifstream file(argv[1], std::ios::binary);
  const std::string source{std::istreambuf_iterator<char>(file), {}};
  for (std::string line; std::getline(std::cin, line);) {
    Json answer;
    try {
      const ring::chat::Template chat(source, argv[1]);
      std::vector<ring::chat::Member> variables;
      const Json request = Json::parse(line);
      for (const auto& [name, value] : request.items()) variables.emplace_back(name, ring::chat::from_json(value));
      const ring::chat::Rendered r = chat.render(std::move(variables));
      answer = {{"text", r.text}, {"generations", r.generations}};
    } catch (const ring::Error& e) {
      answer = {{"error", e.what()}};
    }
    std::cout << answer.dump() << "\n";
  }
}
