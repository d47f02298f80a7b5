// Tokenizers and chat templates in the form that llama.cpp reads.
#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "interchange/gguf/tokenizer.h"
#include "tests/checkpoint/fixture.h"
#include "text/bpe/patterns.h"
#include "text/bpe/train.h"
#include "text/chat/template.h"
#include "text/sentencepiece_train.h"

namespace ring::test {
namespace {

using Json = nlohmann::json;

GgufKeys keys_of(const Tokenizer& t, std::vector<std::string>& notes, std::int64_t vocabulary = 320) {
  return gguf_tokenizer(t, {}, vocabulary, notes);
}
template <class T>
T key(const GgufKeys& keys, const std::string& name) {
  const auto found = std::ranges::find(keys, name, &std::pair<std::string, GgufValue>::first);
  if (found == keys.end()) fail("no key ", name);
  return std::get<T>(found->second);
}

TEST(GgufTokenizer, BytesAreByteLevelWithoutMerges) {
  std::vector<std::string> notes;
  const GgufKeys keys = gguf_tokenizer(*bytes_tokenizer(), {"{{ messages }}", {{"bos_token", "A"}}}, 259, notes);
  const auto tokens = key<std::vector<std::string>>(keys, "tokenizer.ggml.tokens");
  const auto types = key<std::vector<std::int32_t>>(keys, "tokenizer.ggml.token_type");
  ASSERT_EQ(tokens.size(), 259u);
  EXPECT_EQ(tokens['A'], "A");
  EXPECT_EQ(tokens[' '], "\u0120");
  EXPECT_EQ(tokens['\n'], "\u010A");
  EXPECT_EQ(tokens[256], "<|endoftext|>");
  EXPECT_EQ(tokens[258], "[PAD258]");
  EXPECT_EQ(types[0], 1);
  EXPECT_EQ(types[256], 3);
  EXPECT_EQ(types[257], 5);
  EXPECT_EQ(key<std::string>(keys, "tokenizer.ggml.model"), "gpt2");
  EXPECT_TRUE(key<std::vector<std::string>>(keys, "tokenizer.ggml.merges").empty());
  EXPECT_EQ(key<std::string>(keys, "tokenizer.chat_template"), "{{ messages }}");
  EXPECT_EQ(key<std::uint32_t>(keys, "tokenizer.ggml.bos_token_id"), 'A');
}

// llama.cpp passes the texts of bos_token_id and eos_token_id to a template. In training, the template had those of its
// format.
TEST(GgufTokenizer, TemplatesWriteTheTokensOfTheirTraining) {
  const std::string source =
      "\n  {% if true %}{{ bos_token }}<{{ messages }}>{{ eos_token }}{{ unk_token }}{% endif %}";
  const auto written = [](const std::string& text, std::vector<chat::Member> variables) {
    variables.emplace_back("messages", std::string("hi"));
    return chat::Template(text, "template").render(std::move(variables), {}).text;
  };
  const auto in_llama_cpp = [&](const chat::Format& format) {
    std::vector<std::string> notes;
    const GgufKeys keys = gguf_tokenizer(*bytes_tokenizer(), format, 257, notes);
    const auto tokens = key<std::vector<std::string>>(keys, "tokenizer.ggml.tokens");
    const auto token = [&](const std::string& name) {
      return tokens[key<std::uint32_t>(keys, "tokenizer.ggml." + name)];
    };
    EXPECT_FALSE(key<bool>(keys, "tokenizer.ggml.add_bos_token"));
    return written(key<std::string>(keys, "tokenizer.chat_template"),
                   {{"bos_token", token("bos_token_id")}, {"eos_token", token("eos_token_id")}});
  };
  const std::string end = "<|endoftext|>";
  EXPECT_EQ(in_llama_cpp({source, {{"eos_token", end}}}), "\n<hi>" + end) << "no bos_token";
  EXPECT_EQ(in_llama_cpp({source, {{"bos_token", "A"}, {"eos_token", end}}}), "\nA<hi>" + end);
  EXPECT_EQ(in_llama_cpp({source, {{"eos_token", "<\"end\\>\n"}, {"unk_token", "?"}}}), "\n<hi><\"end\\>\n?");
  const std::vector<chat::Member> training{{"bos_token", std::string("A")}, {"eos_token", end}};
  EXPECT_EQ(in_llama_cpp({source, {{"bos_token", "A"}, {"eos_token", end}}}), written(source, training));
}

TEST(GgufTokenizer, SentencePieceKeepsScoresAndTypes) {
  const TextSource text = [](const auto& take) {
    for (int i = 0; i < 200; ++i) take(str("the rain number ", i * i, " stays mainly in the plain of Spain, ", i));
  };
  SentencePieceOptions options;
  options.vocab_size = 310;
  std::vector<std::string> notes;
  const auto t = train_sentencepiece(text, options);
  const GgufKeys keys = keys_of(*t, notes);
  const auto types = key<std::vector<std::int32_t>>(keys, "tokenizer.ggml.token_type");
  const auto scores = key<std::vector<float>>(keys, "tokenizer.ggml.scores");
  EXPECT_EQ(key<std::string>(keys, "tokenizer.ggml.model"), "llama");
  EXPECT_EQ(std::ranges::count(types, 6), 256);
  EXPECT_EQ(types.size(), 320u);
  EXPECT_EQ(types[static_cast<std::size_t>(t->end_of_text().value())], 3);
  EXPECT_LT(scores[static_cast<std::size_t>(t->vocab_size()) - 1], scores[static_cast<std::size_t>(260)]);
  options.kind = "unigram";
  const auto unigram = train_sentencepiece(text, options);
  EXPECT_TRUE(contains(error_of([&] { keys_of(*unigram, notes); }), "not unigram"));
}

TEST(GgufTokenizer, RefusesUnsupportedTokenizersByName) {
  std::vector<std::string> notes;
  const std::string chars = error_of([&] { keys_of(*chars_tokenizer("abc", true), notes); });
  EXPECT_TRUE(contains(chars, "does not support its kind, chars")) << chars;
  EXPECT_TRUE(contains(error_of([&] { keys_of(*bytes_tokenizer(), notes, 100); }),
                       "has 257 tokens, but the model has only 100"));
}

std::string pre_of(const std::string& pre_tokenizer, bool ignore_merges = false) {
  return gguf_pre_tokenizer(str(R"({"model": {"ignore_merges": )", ignore_merges ? "true" : "false",
                                R"(}, "pre_tokenizer": )", pre_tokenizer, "}"));
}

TEST(GgufTokenizer, PreTokenizersAreNamed) {
  const std::string bytes = R"({"type": "ByteLevel", "add_prefix_space": false, "use_regex": )";
  const auto split = [&](bpe::Pattern pattern, const std::string& behavior = "Isolated") {
    const Json regex = std::string(bpe::regex_of(pattern));
    return str(R"({"type": "Sequence", "pretokenizers": [{"type": "Split", "behavior": ")", behavior,
               R"(", "invert": false, "pattern": {"Regex": )", regex.dump(), "}}, ", bytes, "false}]}");
  };
  EXPECT_EQ(pre_of(bytes + "true}"), "gpt-2");
  EXPECT_EQ(pre_of(split(bpe::Pattern::gpt2)), "gpt-2");
  EXPECT_EQ(pre_of(split(bpe::Pattern::qwen2)), "qwen2");
  EXPECT_EQ(pre_of(split(bpe::Pattern::llama3), true), "llama-bpe");
  EXPECT_EQ(pre_of(split(bpe::Pattern::llama3)), "smaug-bpe");
  const std::string digits =
      R"({"type": "Sequence", "pretokenizers": [{"type": "Digits", "individual_digits": true}, )";
  EXPECT_EQ(pre_of(digits + bytes + "true}]}"), "smollm");
  EXPECT_TRUE(contains(error_of([&] { pre_of(split(bpe::Pattern::qwen2), true); }), "qwen2, bytes, ignore_merges"));
  EXPECT_TRUE(
      contains(error_of([&] { pre_of(split(bpe::Pattern::qwen2, "Removed")); }), "no pre-tokenizer that divides"));
  EXPECT_TRUE(contains(error_of([&] { pre_of(R"({"type": "ByteLevel", "use_regex": true})"); }), "a blank in front"));
  const std::string spaces = R"({"type": "Metaspace", "replacement": "\u2581"})";
  EXPECT_TRUE(contains(error_of([&] { pre_of(spaces); }), "--tokenizer tokenizer.model"));
}

#ifdef RING_WITH_UTF8PROC

TEST(GgufTokenizer, ByteLevelMergesAndAddedTokensAreWritten) {
  const auto trained = bpe::train_byte_bpe([](const auto& take) { take("ab ab ab cab cab"); }, {.vocab_size = 300});
  Json file = Json::parse(trained->plain_file());
  const auto size = static_cast<std::int32_t>(trained->vocab_size());
  file["added_tokens"].push_back({{"id", size}, {"content", "<tool>"}, {"special", false}, {"lstrip", true}});
  const auto t = json_tokenizer(file.dump(), "tokenizer.json");
  std::vector<std::string> notes;
  const GgufKeys keys = keys_of(*t, notes);
  const auto types = key<std::vector<std::int32_t>>(keys, "tokenizer.ggml.token_type");
  const auto merges = key<std::vector<std::string>>(keys, "tokenizer.ggml.merges");
  EXPECT_EQ(types[0], 3);
  EXPECT_EQ(types[static_cast<std::size_t>(size)], 4);
  ASSERT_FALSE(merges.empty());
  EXPECT_EQ(merges[0], "a b");
  ASSERT_EQ(notes.size(), 1u);
  EXPECT_TRUE(contains(notes[0], "'<tool>' without the whitespace"));
  file["added_tokens"] = Json::array();
  const auto endless = json_tokenizer(file.dump(), "tokenizer.json");
  EXPECT_TRUE(contains(error_of([&] { keys_of(*endless, notes); }), "its end-of-text token is not known"));
  file["normalizer"] = {{"type", "Lowercase"}};
  const auto lower = json_tokenizer(file.dump(), "tokenizer.json");
  EXPECT_TRUE(contains(error_of([&] { keys_of(*lower, notes); }), "its normalizer is {\"type\":\"Lowercase\"}"));
}

#endif

}  // namespace
}  // namespace ring::test
