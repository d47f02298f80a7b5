#pragma once
// How conversations are written for a model: its chat template, and the tokens that the template names.

#include <string>
#include <utility>
#include <vector>

namespace ring::chat {

struct Format {
  std::string source;                                       // of the template
  std::vector<std::pair<std::string, std::string>> tokens;  // such as {"eos_token", "</s>"}

  // One JSON object, as of a corpus or a run: "chat_template" and the tokens by their names. Of an empty text
  // comes an empty format. Error of the second names `name`.
  std::string json() const;
  static Format from_json(const std::string& json, const std::string& name);
};

// Templates by name: chatml, llama2, llama3, mistral, plain. Null: there is none of that name.
const char* named_template(const std::string& name);
std::string template_names();  // "chatml, llama2, .."

// Returns the template without {% generation %}, which only transformers knows: Jinja itself compiles what is left, and
// it writes the same texts.
std::string plain_jinja(const std::string& source);

// What the files of a published tokenizer say: `config` is tokenizer_config.json, or empty; `jinja`
// chat_template.jinja, which counts before the "chat_template" of the first. Without a template the source stays empty.
// Error names `config_name` and the key.
Format published_format(const std::string& config, const std::string& config_name, const std::string& jinja);

}  // namespace ring::chat
