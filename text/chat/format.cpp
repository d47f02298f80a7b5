#include "text/chat/format.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string_view>
#include <utility>

#include "core/check.h"
#include "core/json.h"
#include "core/yaml.h"

namespace ring::chat {
namespace {

using OrderedJson = nlohmann::ordered_json;

OrderedJson parsed(const std::string& text, const std::string& name) {
  OrderedJson j;
  try {
    j = parse_json<OrderedJson>(text);
  } catch (const Error& e) {
    fail(name, " cannot be read as JSON: ", shown(e.what(), 400));
  }
  if (!j.is_object()) fail(name, ": expected a JSON object, got a JSON ", j.type_name());
  return j;
}

// Returns the text of a token, which is a string or an object with a string in "content"; "" for anything else.
std::string token_text(const OrderedJson& token) {
  if (token.is_string()) return token.get<std::string>();
  const bool described = token.is_object() && token.contains("content") && token["content"].is_string();
  return described ? token["content"].get<std::string>() : "";
}

// Returns the template: a string or, in a list of {"name", "template"}, the template named "default".
std::string template_in(const OrderedJson& j, const std::string& name) {
  const auto found = j.find("chat_template");
  if (found == j.end() || found->is_null()) return "";
  if (found->is_string()) return found->get<std::string>();
  if (found->is_array())
    for (const OrderedJson& one : *found)
      if (one.is_object() && one.value("name", OrderedJson()) == "default" &&
          one.value("template", OrderedJson()).is_string())
        return one["template"].get<std::string>();
  fail(name, ": chat_template is a JSON ", found->type_name(),
       ". Expected a template, or a list with one named 'default'. Give a template with --chat-template");
}

}  // namespace

std::string without_generation_tags(const std::string& source) {
  constexpr std::pair<std::string_view, std::string_view> kWords[] = {{"generation", "if true"},
                                                                      {"endgeneration", "endif"}};
  constexpr const char* kBlanks = " \t\n\v\f\r";
  const std::string_view text = source;
  const auto is_sign = [&](std::size_t at) { return at < text.size() && (text[at] == '-' || text[at] == '+'); };
  const auto skip_blanks = [&](std::size_t at) { return std::min(text.find_first_not_of(kBlanks, at), text.size()); };
  std::string out;
  std::size_t copied = 0;
  for (std::size_t tag = text.find("{%"); tag != std::string_view::npos; tag = text.find("{%", tag + 2)) {
    const std::size_t word = skip_blanks(tag + 2 + is_sign(tag + 2));
    for (const auto& [name, plain] : kWords) {
      if (!text.substr(word).starts_with(name)) continue;
      const std::size_t end = skip_blanks(word + name.size());
      if (!text.substr(end + is_sign(end)).starts_with("%}")) continue;
      out.append(text.substr(copied, word - copied)).append(plain);
      copied = word + name.size();
    }
  }
  return out.append(text.substr(copied));
}

std::string Format::to_json() const {
  OrderedJson j{{"chat_template", source}};
  for (const auto& [name, text] : tokens) j[name] = text;
  return ring::json_text(j);
}

Format Format::from_json(const std::string& json, const std::string& name) { return published_format(json, name, ""); }

Format published_format(const std::string& config, const std::string& config_name, const std::string& jinja) {
  Format f{jinja, {}};
  if (config.empty()) return f;
  const OrderedJson j = parsed(config, config_name);
  if (f.source.empty()) f.source = template_in(j, config_name);
  for (const auto& [name, token] : j.items())
    if (std::string text = name.ends_with("_token") ? token_text(token) : ""; !text.empty())
      f.tokens.emplace_back(name, std::move(text));
  return f;
}

}  // namespace ring::chat
