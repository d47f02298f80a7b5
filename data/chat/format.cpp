#include "data/chat/format.h"

#include <nlohmann/json.hpp>
#include <regex>

#include "core/check.h"
#include "core/json.h"
#include "core/yaml.h"

namespace ring::chat {
namespace {

using Json = nlohmann::ordered_json;

Json parsed(const std::string& text, const std::string& name) {
  Json j;
  try {
    j = parse_json<Json>(text);
  } catch (const Error& e) {
    fail(name, " cannot be read as JSON: ", shown(e.what(), 400));
  }
  if (!j.is_object()) fail(name, " is a JSON ", j.type_name(), ", an object is wanted");
  return j;
}

// A token is a text, or an object whose "content" is one.
std::string token_text(const Json& token) {
  if (token.is_string()) return token.get<std::string>();
  const bool described = token.is_object() && token.contains("content") && token["content"].is_string();
  return described ? token["content"].get<std::string>() : "";
}

// One template, or a list of {"name", "template"}, of which that named "default" counts.
std::string template_in(const Json& j, const std::string& name) {
  const auto found = j.find("chat_template");
  if (found == j.end() || found->is_null()) return "";
  if (found->is_string()) return found->get<std::string>();
  if (found->is_array())
    for (const Json& one : *found)
      if (one.is_object() && one.value("name", Json()) == "default" && one.value("template", Json()).is_string())
        return one["template"].get<std::string>();
  fail(name, ": chat_template is a JSON ", found->type_name(),
       ", neither a template nor a list with one named 'default'; give a template with --chat-template");
}

}  // namespace

std::string plain_jinja(const std::string& source) {
  static const std::regex begins(R"((\{%[-+]?\s*)generation(\s*[-+]?%\}))");
  static const std::regex ends(R"((\{%[-+]?\s*)endgeneration(\s*[-+]?%\}))");
  return std::regex_replace(std::regex_replace(source, begins, "$1if true$2"), ends, "$1endif$2");
}

std::string Format::json() const {
  Json j{{"chat_template", source}};
  for (const auto& [name, text] : tokens) j[name] = text;
  return j.dump(-1, ' ', false, Json::error_handler_t::replace);
}

Format Format::from_json(const std::string& json, const std::string& name) { return published_format(json, name, ""); }

Format published_format(const std::string& config, const std::string& config_name, const std::string& jinja) {
  Format f{jinja, {}};
  if (config.empty()) return f;
  const Json j = parsed(config, config_name);
  if (f.source.empty()) f.source = template_in(j, config_name);
  for (const auto& [name, token] : j.items())
    if (std::string text = name.ends_with("_token") ? token_text(token) : ""; !text.empty())
      f.tokens.emplace_back(name, std::move(text));
  return f;
}

}  // namespace ring::chat
