// Tokens of conversations and of prompts with completions are the same as those of the whole text, although the loss
// mask splits the text.
#include "data/load_chat_format.h"
#include "data/prepare.h"
#include "tests/data/corpus_case.h"
#include "tests/text/tokenizer_files.h"

#ifdef RING_WITH_UTF8PROC

namespace ring::test {
namespace {

// Returns the tokens of a corpus made from one file, and for each token '+' if it counts, else '-'.
std::pair<Ids, std::string> prepare_tokens(const Json& tokenizer, const std::string& file, const std::string& text,
                                           const RecordMembers& members, const std::string& config = "{}") {
  TempFolder folder;
  write_text(folder / "tokenizer.json", tokenizer.dump());
  write_text(folder / "tokenizer_config.json", config);
  write_text(folder / file, text);
  PrepareOptions o;
  o.inputs = {folder / file};
  o.members = members;
  o.tokenizer = folder / "tokenizer.json";
  o.output = folder / "out.h5";
  o.validation_fraction = 0;
  prepare_corpus(o);
  const auto store = TokenStore::open(o.output);
  Ids ids(store->train().tokens());
  std::vector<std::uint8_t> mask(ids.size());
  store->train().read(0, ids.size(), ids.data());
  store->train().read_mask(0, ids.size(), mask.data());
  std::string counts;
  for (const std::uint8_t m : mask) counts += m ? '+' : '-';
  return {ids, counts};
}

// Returns a byte-level tokenizer that puts <s> (256) before a text and </s> (257) after it.
Json with_begin_and_end() {
  Json j = byte_level({});
  for (const char* name : {"<s>", "</s>"}) add_token(j, name, {{"special", true}});
  const auto special = [](const char* name) { return Json{{"SpecialToken", {{"id", name}, {"type_id", 0}}}}; };
  j["post_processor"] = {{"type", "TemplateProcessing"},
                         {"single", {special("<s>"), {{"Sequence", {{"id", "A"}, {"type_id", 0}}}}, special("</s>")}},
                         {"special_tokens", {{"<s>", {{"ids", {256}}}}, {"</s>", {{"ids", {257}}}}}}};
  return j;
}

TEST(MaskedTokens, TokensAroundATextAreNotAddedTwice) {
  const Json j = with_begin_and_end();
  const auto ids = [&](const std::string& text) { return prepare_tokens(j, "a.txt", text, {}).first; };
  const Ids around{256, 'a', 257};
  for (const char* text : {"a", "<s>a", "a</s>", "<s>a</s>"}) EXPECT_EQ(ids(text), around) << text;
  EXPECT_EQ(ids("<s><s>a"), (Ids{256, 256, 'a', 257})) << "what the text itself has twice stays";
  EXPECT_EQ(ids("</s>a<s>"), (Ids{256, 257, 'a', 256, 257}));
  const auto pair = prepare_tokens(j, "a.jsonl", R"({"prompt": "<s>a", "completion": "b</s>"})",
                                   {.prompt = "prompt", .completion = "completion"});
  EXPECT_EQ(pair.first, (Ids{256, 'a', 'b', 257}));
  EXPECT_EQ(pair.second, "--++");
}

// tokenizers 0.23 gives these tokens for the text of the whole conversation: <|end|> includes the newline after it.
TEST(MaskedTokens, BlanksAfterATokenWithRstripBelongToItAcrossAMask) {
  Json j = byte_level({});
  for (const char* name : {"<|end|>", "<|user|>", "<|assistant|>"})
    add_token(j, name, {{"special", true}, {"rstrip", true}});
  const std::string config = R"({"chat_template": "{% for m in messages %}{{ '<|' + m.role + '|>\n' + m.content )"
                             R"(+ '<|end|>\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|assistant|>\n' }})"
                             R"({% endif %}"})";
  const char* chat =
      R"({"messages": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "4"},
          {"role": "user", "content": "yo"}, {"role": "assistant", "content": " 5"}]})";
  std::string line(chat);
  line.erase(line.find('\n'), 1);
  const auto [ids, counts] = prepare_tokens(j, "a.jsonl", line, {.messages = "messages"}, config);
  EXPECT_EQ(ids, (Ids{257, 'h', 'i', 256, 258, '4', 256, 257, 'y', 'o', 256, 258, '5', 256}));
  EXPECT_EQ(counts, "-----++-----++");
}

// tokenizers 0.23 gives these tokens for the text of the whole conversation: with Llama 2's normalizer, and with
// Metaspace `always`, U+2581 precedes each section, and a special token ends a section.
TEST(MaskedTokens, TextAfterASpecialTokenBeginsASectionAcrossAMask) {
  const std::string config = R"({"chat_template": "{% for m in messages %}{{ '<|' + m.role + '|>' + m.content )"
                             R"(+ '<|end|>\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|assistant|>' }})"
                             R"({% endif %}"})";
  const std::string chat = R"({"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "a b"},)"
                           R"( {"role": "user", "content": "ab"}, {"role": "assistant", "content": "b"}]})";
  const Ids with{263, 4, 262, 1, 16, 264, 4, 1, 3, 262, 1, 16, 263, 4, 3, 262, 1, 16, 264, 1, 3, 262, 1, 16};
  const Ids without{263, 2, 262, 16, 264, 2, 1, 3, 262, 16, 263, 5, 262, 16, 264, 3, 262, 16};
  for (const std::string kind : {"prepend", "always", "first"}) {
    Json j = like_llama2();
    if (kind != "prepend") {
      j["normalizer"] = nullptr;
      j["pre_tokenizer"] = {
          {"type", "Metaspace"}, {"replacement", "\u2581"}, {"prepend_scheme", kind}, {"split", true}};
    }
    for (const char* name : {"<|end|>", "<|user|>", "<|assistant|>"}) add_token(j, name, {{"special", true}});
    const auto [ids, counts] = prepare_tokens(j, "a.jsonl", chat, {.messages = "messages"}, config);
    EXPECT_EQ(ids, kind == "first" ? without : with) << kind;
    EXPECT_EQ(counts, kind == "first" ? "-----++++------++-" : "------++++---------+++--") << kind;
  }
}

// tokenizers 0.23 gives these tokens for the whole text: <|end|> includes the blanks before it.
TEST(MaskedTokens, BlanksBeforeATokenWithLstripBelongToItAcrossAMask) {
  Json j = byte_level({});
  for (const char* name : {"<|end|>", "<|user|>", "<|assistant|>"})
    add_token(j, name, {{"special", true}, {"lstrip", true}});
  const std::string config = R"({"chat_template": "{% for m in messages %}{{ '<|' + m.role + '|> ' + m.content )"
                             R"(+ '<|end|>' }}{% endfor %}{% if add_generation_prompt %}{{ '<|assistant|> ' }})"
                             R"({% endif %}"})";
  const auto [ids, counts] =
      prepare_tokens(j, "a.jsonl",
                     R"({"messages": [{"role": "user", "content": "hi \n"}, {"role": "assistant", "content": "4 "},)"
                     R"( {"role": "user", "content": "yo"}, {"role": "assistant", "content": ""}]})",
                     {.messages = "messages"}, config);
  EXPECT_EQ(ids, (Ids{257, ' ', 'h', 'i', 256, 258, ' ', '4', 256, 257, ' ', 'y', 'o', 256, 258, 256}));
  EXPECT_EQ(counts, "-------++------+");
}

TEST(MaskedTokens, BlanksBeforeATokenWithLstripThatBeginsAnAnswerBelongToIt) {
  Json j = byte_level({});
  add_token(j, "<|a|>", {{"special", true}, {"lstrip", true}});
  add_token(j, "<|b|>", {{"lstrip", true}, {"single_word", true}});
  const auto ids = [&](const std::string& prompt, const std::string& completion) {
    return prepare_tokens(j, "a.jsonl", Json{{"prompt", prompt}, {"completion", completion}}.dump(),
                          {.prompt = "prompt", .completion = "completion"})
        .first;
  };
  EXPECT_EQ(ids("q: \n", "<|a|>"), (Ids{'q', ':', 256}));
  EXPECT_EQ(ids("q: ", "\t<|a|>x"), (Ids{'q', ':', 256, 'x'}));
  EXPECT_EQ(ids("q: ", "<|b|> x"), (Ids{'q', ':', 257, ' ', 'x'}));
  const Ids within = ids("q: ", "<|b|>x");  // inside a word it is no token
  EXPECT_EQ(Ids(within.begin(), within.begin() + 4), (Ids{'q', ':', ' ', '<'}));
  EXPECT_EQ(ids("q: ", "x"), (Ids{'q', ':', ' ', 'x'}));
}

}  // namespace
}  // namespace ring::test

#endif
