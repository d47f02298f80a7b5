#include "data/load_chat_format.h"

#include <algorithm>
#include <filesystem>

#include "core/byte_order_mark.h"
#include "core/check.h"
#include "core/files.h"
#include "core/io_error.h"
#include "data/load_tokenizer.h"
#include "data/token_store.h"
#include "text/tokenizer.h"

namespace ring {
namespace {

namespace fs = std::filesystem;

bool is_corpus(const std::string& spec) {
  std::error_code error;
  return fs::is_regular_file(spec, error) && TokenStore::looks_like_corpus(open_input(spec));
}

// Adds a special token that the tokenizer puts around texts, unless the files define this token.
void add_token(chat::Format& f, const std::string& name, std::optional<std::int32_t> id, const Tokenizer& tokenizer) {
  const bool there = std::ranges::any_of(f.tokens, [&](const auto& t) { return t.first == name; });
  if (!there && id) f.tokens.emplace_back(name, tokenizer.piece(*id));
}

std::string chosen_template(const std::string& choice) {
  if (const char* named = chat::named_template(choice)) return named;
  std::error_code error;
  const bool there = fs::exists(choice, error);
  if (error) fail("--chat-template ", choice, ": ", io_error_text(error.value()));
  if (!there || !fs::is_regular_file(choice, error))
    fail("--chat-template ", choice, ": neither a file nor the name of a built-in template; the names are ",
         chat::template_names());
  return std::string(without_byte_order_marks(read_file(choice)));
}

}  // namespace

chat::Format chat_format_beside(const std::string& spec, const std::string& source) {
  if (spec == "bytes") return {source, {}};
  if (is_corpus(spec)) return chat::published_format(TokenStore::open(spec)->chat_template(), spec, source);
  if (const std::string kept = text_beside_tokenizer(spec, kChatTemplateFile); !kept.empty())
    return chat::published_format(kept, (tokenizer_folder(spec) / kChatTemplateFile).string(), source);
  const std::string config = (tokenizer_folder(spec) / "tokenizer_config.json").string();
  return chat::published_format(text_beside_tokenizer(spec, "tokenizer_config.json"), config,
                                source.empty() ? text_beside_tokenizer(spec, "chat_template.jinja") : source);
}

chat::Format load_chat_format(const std::string& choice, const std::string& spec, const Tokenizer& tokenizer) {
  chat::Format f = chat_format_beside(spec, choice.empty() ? "" : chosen_template(choice));
  if (f.source.empty())
    fail("the tokenizer ", spec,
         " comes without a chat template (in chat_template.jinja or tokenizer_config.json beside a "
         "tokenizer.json, or in a corpus); choose one with --chat-template: a file, or ",
         chat::template_names());
  const auto before = tokenizer.before_text();
  const auto begin = tokenizer.kind() == "sentencepiece" ? tokenizer.bos() : std::nullopt;
  add_token(f, "bos_token", before.empty() ? begin : std::optional(before.front()), tokenizer);
  add_token(f, "eos_token", tokenizer.end_of_text(), tokenizer);
  return f;
}

}  // namespace ring
