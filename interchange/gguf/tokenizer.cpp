#include "interchange/gguf/tokenizer.h"

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "core/check.h"
#include "core/json.h"
#include "interchange/hf/saved_weights.h"
#include "text/bpe/description.h"
#include "text/sentencepiece_check.h"
#include "text/utf8.h"

namespace ring {
namespace {

using Json = nlohmann::json;
using Type = SentencePieces::Type;  // its values are the same as llama.cpp's token types

constexpr int kBytes = 256;

template <class... Parts>
[[noreturn]] void refuse(const Parts&... parts) {
  fail("the tokenizer cannot be exported as GGUF: ", parts..., ". Export with --format hf instead");
}

struct Vocabulary {
  explicit Vocabulary(std::int64_t size) {
    for (std::int64_t id = 0; id < size; ++id) tokens.push_back(str("[PAD", id, "]"));
    types.resize(tokens.size(), static_cast<std::int32_t>(Type::unused));
  }
  void set(std::int64_t id, const std::string& token, Type type) {
    tokens.at(static_cast<std::size_t>(id)) = token;
    types.at(static_cast<std::size_t>(id)) = static_cast<std::int32_t>(type);
  }
  std::vector<std::string> tokens;
  std::vector<std::int32_t> types;
};

// --- tokenizer.json ---

// Returns the known pattern whose matches are the words of this split step; nullopt if there is none.
std::optional<bpe::Pattern> pattern_of(const Json& split) {
  const bool matches = split.at("behavior") == (split.value("invert", false) ? "Removed" : "Isolated");
  if (!matches || !split.at("pattern").contains("Regex")) return std::nullopt;
  return bpe::pattern_of(split.at("pattern").at("Regex").get_ref<const std::string&>());
}

// Appends the steps of a pre_tokenizer in order, each described in words.
void add_steps(const Json& j, std::vector<std::string>& steps) {
  const std::string type = j.at("type");
  if (type == "Sequence") {
    for (const Json& item : j.at("pretokenizers")) add_steps(item, steps);
  } else if (type == "ByteLevel") {
    if (j.value("add_prefix_space", true)) steps.emplace_back("a blank in front");
    if (j.value("use_regex", true)) steps.emplace_back("gpt2");
    steps.emplace_back("bytes");
  } else if (type == "Digits" && j.value("individual_digits", false)) {
    steps.emplace_back("digits");
  } else if (const auto known = type == "Split" ? pattern_of(j) : std::nullopt) {
    const bool llama3 = known == bpe::Pattern::llama3;
    steps.emplace_back(llama3 ? "llama3" : known == bpe::Pattern::qwen2 ? "qwen2" : "gpt2");
  } else {
    steps.push_back(j.dump());
  }
}

std::string joined_steps(const Json& file) {
  std::vector<std::string> steps;
  if (file.contains("pre_tokenizer") && !file.at("pre_tokenizer").is_null()) add_steps(file.at("pre_tokenizer"), steps);
  std::string all;
  for (const std::string& step : steps) all += (all.empty() ? "" : ", ") + step;
  if (file.at("model").value("ignore_merges", false)) all += ", ignore_merges";
  return all;
}

void note_normalizer(const Json& file, std::vector<std::string>& notes) {
  if (!file.contains("normalizer") || file.at("normalizer").is_null()) return;
  const Json& normalizer = file.at("normalizer");
  if (normalizer.at("type") != "NFC") refuse("its normalizer is ", normalizer.dump(), ", but llama.cpp has none");
  notes.push_back(
      "llama.cpp does not normalize text (NFC), so text that is not normalized gets different tokens there");
}

std::string merge_of(const Json& j) {
  return j.is_array() ? j.at(0).get<std::string>() + " " + j.at(1).get<std::string>() : j.get<std::string>();
}

std::vector<std::string> merges_of(const Json& model) {
  std::vector<std::string> merges;
  for (const Json& j : model.at("merges"))
    if (const std::string merge = merge_of(j); !merge.starts_with("#version")) merges.push_back(merge);
  return merges;
}

void add_added_tokens(const Json& file, Vocabulary& vocabulary, std::vector<std::string>& notes) {
  if (!file.contains("added_tokens")) return;
  for (const Json& t : file.at("added_tokens")) {
    const std::string content = t.at("content");
    vocabulary.set(t.at("id"), content, t.value("special", false) ? Type::control : Type::user_defined);
    if (t.value("lstrip", false) || t.value("rstrip", false) || t.value("single_word", false))
      notes.push_back(str("llama.cpp matches '", content, "' without the whitespace around it, and also inside words"));
  }
}

void add_json(GgufKeys& keys, const std::string& text, Vocabulary& vocabulary, std::vector<std::string>& notes) {
  const Json file = parse_json<Json>(text);
  keys.emplace_back("tokenizer.ggml.model", std::string("gpt2"));
  keys.emplace_back("tokenizer.ggml.pre", gguf_pre_tokenizer(text));
  note_normalizer(file, notes);
  for (const auto& [token, id] : file.at("model").at("vocab").items()) vocabulary.set(id, token, Type::normal);
  add_added_tokens(file, vocabulary, notes);
  keys.emplace_back("tokenizer.ggml.merges", merges_of(file.at("model")));
}

// --- other kinds of tokenizers ---

// Adds the vocabulary of our byte-level tokenizer `bytes`, which has no merges.
void add_bytes(GgufKeys& keys, const Tokenizer& tokenizer, Vocabulary& vocabulary) {
  keys.emplace_back("tokenizer.ggml.model", std::string("gpt2"));
  keys.emplace_back("tokenizer.ggml.pre", std::string("gpt-2"));
  keys.emplace_back("tokenizer.ggml.merges", std::vector<std::string>());
  for (int byte = 0; byte < kBytes; ++byte) {
    std::string character;
    utf8::append(character, bpe::character_of(static_cast<unsigned char>(byte)));
    vocabulary.set(byte, character, Type::normal);
  }
  const std::int32_t end = tokenizer.end_of_text().value();
  vocabulary.set(end, tokenizer.piece(end), Type::control);
}

void add_sentencepiece(GgufKeys& keys, const Tokenizer& tokenizer, Vocabulary& vocabulary,
                       std::vector<std::string>& notes) {
  const SentencePieces model = read_sentencepieces(tokenizer.plain_file(), "tokenizer.model");
  if (!model.bpe) refuse("for SentencePiece models, llama.cpp supports BPE, but not unigram");
  if (std::ranges::count(model.pieces, Type::byte, &SentencePieces::Piece::type) != kBytes)
    refuse("it has no byte tokens (byte_fallback), without which llama.cpp fails on characters outside the vocabulary");
  if (model.replaces)
    notes.push_back("llama.cpp does not normalize text, so characters that SentencePiece replaces stay there");
  std::vector<float> scores(vocabulary.tokens.size());
  for (std::size_t id = 0; id < model.pieces.size(); ++id) {
    const SentencePieces::Piece& p = model.pieces[id];
    vocabulary.set(static_cast<std::int64_t>(id), p.text, p.type);
    scores[id] = p.score;
    if (p.type == Type::unknown) keys.emplace_back("tokenizer.ggml.unknown_token_id", static_cast<std::uint32_t>(id));
  }
  keys.emplace_back("tokenizer.ggml.model", std::string("llama"));
  keys.emplace_back("tokenizer.ggml.pre", std::string("default"));
  keys.emplace_back("tokenizer.ggml.scores", scores);
  keys.emplace_back("tokenizer.ggml.add_space_prefix", tokenizer.blank_in_front());
}

void add_vocabulary(GgufKeys& keys, const Tokenizer& tokenizer, Vocabulary& vocabulary,
                    std::vector<std::string>& notes) {
  if (tokenizer.kind() == "tokenizer.json") return add_json(keys, tokenizer.plain_file(), vocabulary, notes);
  if (tokenizer.kind() == "sentencepiece") return add_sentencepiece(keys, tokenizer, vocabulary, notes);
  if (tokenizer.kind() != "bytes") refuse("llama.cpp does not support its kind, ", tokenizer.kind());
  add_bytes(keys, tokenizer, vocabulary);
}

// Adds the begin and end tokens. Returns the values that llama.cpp's templates read as bos_token and eos_token.
// - llama.cpp adds one token before a text and one after it, or none.
// - If bos_token_id is missing, llama.cpp's loader uses a default (11 for gpt2, 1 for llama), which is an arbitrary
//   token here. For a tokenizer without a begin token, bos_token_id is therefore the end token, and add_bos_token is
//   false, as in the published files of Qwen2 and GPT-2.
std::map<std::string, std::string> add_ends(GgufKeys& keys, const Tokenizer& tokenizer, const chat::Format& format,
                                            const Vocabulary& vocabulary) {
  const auto end = tokenizer.end_of_text();
  if (!end)
    refuse(
        "its end-of-text token is not known, and llama.cpp would use an arbitrary one. Set eos_token in a "
        "tokenizer_config.json beside tokenizer.json");
  const std::vector<std::int32_t> before = tokenizer.before_text(), after = tokenizer.after_text();
  if (before.size() > 1 || after.size() > 1 || (!after.empty() && after[0] != *end))
    refuse("it adds tokens to a text other than one begin token and one end token");
  std::int64_t first = before.empty() ? tokenizer.begin_of_text().value_or(*end) : before[0];
  for (const auto& [name, text] : format.tokens)
    if (const auto at = std::ranges::find(vocabulary.tokens, text);
        before.empty() && name == "bos_token" && at != vocabulary.tokens.end())
      first = at - vocabulary.tokens.begin();
  keys.emplace_back("tokenizer.ggml.bos_token_id", static_cast<std::uint32_t>(first));
  keys.emplace_back("tokenizer.ggml.eos_token_id", static_cast<std::uint32_t>(*end));
  keys.emplace_back("tokenizer.ggml.add_bos_token", !before.empty());
  keys.emplace_back("tokenizer.ggml.add_eos_token", !after.empty());
  const auto text_of = [&](std::int64_t id) { return vocabulary.tokens[static_cast<std::size_t>(id)]; };
  return {{"bos_token", text_of(first)}, {"eos_token", text_of(*end)}};
}

// Returns the chat template for llama.cpp. given: the variables that llama.cpp passes to it. If a variable that the
// template uses is not given, or not with its value in `format`, a line at the start sets it. llama.cpp removes the
// newline after a tag.
std::string template_for(const chat::Format& format, const std::map<std::string, std::string>& given) {
  std::map<std::string, std::string> wanted{{"bos_token", ""}, {"eos_token", ""}};
  for (const auto& [name, text] : format.tokens) wanted[name] = text;
  std::string source = chat::without_generation_tags(format.source), set;
  for (const auto& [name, text] : wanted) {
    const auto found = given.find(name);
    if (source.find(name) == std::string::npos || (found != given.end() && found->second == text)) continue;
    set += "{% set " + name + " = " + json_text(Json(text)) + " %}\n";
  }
  return set + source;
}

}  // namespace

std::string gguf_pre_tokenizer(const std::string& json) {
  static const std::vector<std::pair<std::string, std::string>> names = {{"gpt2, bytes", "gpt-2"},
                                                                         {"digits, gpt2, bytes", "smollm"},
                                                                         {"qwen2, bytes", "qwen2"},
                                                                         {"llama3, bytes", "smaug-bpe"},
                                                                         {"llama3, bytes, ignore_merges", "llama-bpe"}};
  const std::string steps = joined_steps(parse_json<Json>(json));
  for (const auto& [known, name] : names)
    if (steps == known) return name;
  if (!steps.ends_with("bytes") && !steps.ends_with("bytes, ignore_merges"))
    refuse("it is not byte-level. If a tokenizer.model came with it, import again with --tokenizer tokenizer.model");
  refuse("llama.cpp has no pre-tokenizer that divides text in the same way (", steps, ")");
}

GgufKeys gguf_tokenizer(const Tokenizer& tokenizer, const chat::Format& format, std::int64_t vocab_size,
                        std::vector<std::string>& notes) {
  if (tokenizer.vocab_size() > vocab_size)
    fail("the tokenizer has ", tokenizer.vocab_size(), " tokens, but the model has only ", vocab_size);
  GgufKeys keys;
  Vocabulary vocabulary(vocab_size);
  add_vocabulary(keys, tokenizer, vocabulary, notes);
  const auto given = add_ends(keys, tokenizer, format, vocabulary);
  keys.emplace_back("tokenizer.ggml.tokens", std::move(vocabulary.tokens));
  keys.emplace_back("tokenizer.ggml.token_type", std::move(vocabulary.types));
  if (!format.source.empty()) keys.emplace_back("tokenizer.chat_template", template_for(format, given));
  return keys;
}

}  // namespace ring
