#pragma once
// A model's chat template, and the tokens that the template refers to by name.

#include <string>
#include <utility>
#include <vector>

namespace ring::chat {

struct Format {
  std::string source;                                       // source text of the template
  std::vector<std::pair<std::string, std::string>> tokens;  // e.g. {"eos_token", "</s>"}

  // Returns a JSON object with "chat_template" and the tokens by name, as it is stored in corpora and runs.
  std::string to_json() const;
  // Reads the result of to_json(); "" gives an empty format. Throws Error, which names `name`, if it cannot be read.
  static Format from_json(const std::string& json, const std::string& name);
};

// Returns the built-in template with this name (see template_names()); null if there is none.
const char* named_template(const std::string& name);
std::string template_names();  // names of the built-in templates, e.g. "chatml, llama2, .."

// Returns a template that writes the same text without {% generation %}: that tag is an extension of transformers,
// which plain Jinja does not compile.
std::string without_generation_tags(const std::string& source);

// Reads the format from the files of a published tokenizer. `config` is the text of tokenizer_config.json or "",
// `jinja` is the text of chat_template.jinja or "". `jinja` takes precedence over "chat_template" in `config`. If
// neither contains a template, `source` is "". Throws Error, which names `config_name` and the key, if `config` cannot
// be read.
Format published_format(const std::string& config, const std::string& config_name, const std::string& jinja);

}  // namespace ring::chat
