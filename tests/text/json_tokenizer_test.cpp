// tokenizer.json: small files whose tokens can be derived from the rules by hand. tests/tokenizers compares large files
// with Hugging Face's tokenizers.
#include <nlohmann/json.hpp>
#include <random>

#include "core/files.h"
#include "data/load_chat_format.h"
#include "data/load_tokenizer.h"
#include "data/prepare.h"
#include "tests/data/corpus_case.h"
#include "tests/text/tokenizer_files.h"
#include "text/bpe/description.h"
#include "text/bpe/patterns.h"
#include "text/bpe/train.h"
#include "text/utf8.h"

namespace ring {
namespace {

using namespace test;

#ifndef RING_WITH_UTF8PROC

TEST(JsonTokenizer, IsRefusedWithoutUtf8proc) {
  Json j = {{"model", {{"vocab", {{"a", 0}}}, {"merges", Json::array()}}},
            {"pre_tokenizer", {{"type", "ByteLevel"}}},
            {"decoder", {{"type", "ByteLevel"}}}};
  expect_error([&] { json_tokenizer(j.dump(), "t.json"); }, {"utf8proc", "libutf8proc-dev"});
}

#else

std::vector<std::string> pieces(bpe::Pattern p, std::string_view text) {
  std::vector<std::string> out;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = bpe::piece_end(p, text, at);
    out.emplace_back(text.substr(at, end - at));
    at = end;
  }
  return out;
}

using Pieces = std::vector<std::string>;

TEST(Patterns, Gpt2SplitsWords) {
  const auto p = [](std::string_view text) { return pieces(bpe::Pattern::gpt2, text); };
  EXPECT_EQ(p("it's John's, IT'S"), (Pieces{"it", "'s", " John", "'s", ",", " IT", "'", "S"}));
  EXPECT_EQ(p("a   b \n c"), (Pieces{"a", "  ", " b", " \n", " c"}));
  EXPECT_EQ(p("x\n\ny  "), (Pieces{"x", "\n", "\n", "y", "  "}));
  EXPECT_EQ(p("1234 5.6"), (Pieces{"1234", " 5", ".", "6"}));
  EXPECT_EQ(p("\xC3\xA9t\xC3\xA9 \xD9\xA3!?\xC2\xA0z"),
            (Pieces{"\xC3\xA9t\xC3\xA9", " \xD9\xA3", "!?", "\xC2\xA0", "z"}));
  EXPECT_EQ(p("e\xCC\x81 \xFFx"),
            (Pieces{"e", "\xCC\x81", " \xFF", "x"}));  // marks are not letters, and neither is a stray byte
}

TEST(Patterns, Llama3AndQwen2SplitWords) {
  const auto p = [](std::string_view text) { return pieces(bpe::Pattern::llama3, text); };
  EXPECT_EQ(p("IT'S we'Ll 'x '\xC5\xBFt"), (Pieces{"IT", "'S", " we", "'Ll", " '", "x", " '", "\xC5\xBFt"}));
  EXPECT_EQ(p("'\xC5\xBFt"), (Pieces{"'\xC5\xBF", "t"}));  // U+017F is an s in lower case
  EXPECT_EQ(p("12345 67"), (Pieces{"123", "45", " ", "67"}));
  EXPECT_EQ(p("f(x);\n\n  y"), (Pieces{"f", "(x", ");\n\n", " ", " y"}));
  EXPECT_EQ(p("a \n\n  b\r\n"), (Pieces{"a", " \n\n", " ", " b", "\r\n"}));
  EXPECT_EQ(p("\tz   "), (Pieces{"\tz", "   "}));
  EXPECT_EQ(pieces(bpe::Pattern::qwen2, "v12 3"), (Pieces{"v", "1", "2", " ", "3"}));
}

TEST(Patterns, AreRecognizedByTheirText) {
  for (const auto p : {bpe::Pattern::gpt2, bpe::Pattern::llama3, bpe::Pattern::qwen2})
    EXPECT_EQ(bpe::pattern_of(bpe::regex_of(p)), p);
  EXPECT_FALSE(bpe::pattern_of("\\s+"));
}

TEST(JsonTokenizer, MergesTheLowestRankFirstAndTheLeftmost) {
  const auto t = tokenizer_of(byte_level({{"b", "c"}, {"a", "b"}, {"a", "a"}, {"aa", "a"}, {"ab", "c"}}));
  EXPECT_EQ(t->encode("abc"), (Ids{'a', 256}));  // bc is merged before ab, and then a bc has no merge
  EXPECT_EQ(t->encode("abab"), (Ids{257, 257}));
  EXPECT_EQ(t->encode("aaaa"), (Ids{258, 258}));  // not aaa a
  EXPECT_EQ(t->encode("aaaaa"), (Ids{258, 259}));
  EXPECT_EQ(t->decode(t->encode("abc aab\xFF")), "abc aab\xFF");
  EXPECT_EQ(t->vocab_size(), 261);
  EXPECT_FALSE(t->end_of_text());
}

TEST(JsonTokenizer, IgnoreMergesTakesWholeWords) {
  Json j = byte_level({{"b", "c"}, {"a", "b"}, {"ab", "c"}});
  EXPECT_EQ(tokenizer_of(j)->encode("abc"), (Ids{'a', 256}));
  j["model"]["ignore_merges"] = true;
  EXPECT_EQ(tokenizer_of(j)->encode("abc"), (Ids{258}));
}

TEST(JsonTokenizer, MergesMayBePairs) {
  Json j = byte_level({{"a", "b"}, {"ab", "c"}});
  const std::string one = tokenizer_of(j)->decode(tokenizer_of(j)->encode("abc"));
  j["model"]["merges"] = Json::array({Json::array({"a", "b"}), Json::array({"ab", "c"})});
  EXPECT_EQ(tokenizer_of(j)->encode("abc"), (Ids{257}));
  EXPECT_EQ(one, "abc");
}

TEST(JsonTokenizer, AddedTokensAreFoundInText) {
  Json j = byte_level({});
  add_token(j, "<end>", {{"special", true}});                 // 256
  add_token(j, "<end>>");                                     // 257: the longest token wins
  add_token(j, "<m>", {{"lstrip", true}, {"rstrip", true}});  // 258
  add_token(j, "word", {{"single_word", true}});              // 259
  const auto t = tokenizer_of(j);
  EXPECT_EQ(t->encode("a<end>b<end>>"), (Ids{'a', 256, 'b', 257}));
  EXPECT_EQ(t->encode("a \n<m>\t b"), (Ids{'a', 258, 'b'}));
  EXPECT_EQ(t->encode("word words"), (Ids{259, ' ', 'w', 'o', 'r', 'd', 's'}));
  EXPECT_EQ(t->decode(Ids{'a', 256, 257, 258}), "a<end>><m>");  // a special token has no text
  EXPECT_EQ(t->piece(256), "<end>");
}

TEST(JsonTokenizer, NormalFormsKeepOffsetsOfTheText) {
  Json j = byte_level({});
  j["normalizer"] = {{"type", "NFC"}};
  const auto t = tokenizer_of(j);
  const std::string text = "ae\xCC\x81.";  // e and U+0301 become U+00E9, of two bytes
  EXPECT_EQ(t->encode(text), (Ids{'a', 0xC3, 0xA9, '.'}));
  const auto placed = t->encode_placed(text);
  ASSERT_EQ(placed.size(), 4u);
  EXPECT_EQ(placed[1].begin, 1u);
  EXPECT_EQ(placed[1].end, 2u);  // the base alone, as in Hugging Face's tokenizers
  EXPECT_EQ(placed[2].begin, 1u);
  EXPECT_EQ(placed[3].begin, 4u);
  EXPECT_EQ(placed[3].end, 5u);
  EXPECT_EQ(t->decode(t->encode("\u0958")), "\u0915\u093C");                  // excluded from composition
  EXPECT_EQ(t->encode("\xE1\x84\x80\xE1\x85\xA1"), (Ids{0xEA, 0xB0, 0x80}));  // Hangul composed from its letters
  j["normalizer"] = {{"type", "Sequence"}, {"normalizers", {{{"type", "NFKC"}}, {{"type", "Lowercase"}}}}};
  EXPECT_EQ(tokenizer_of(j)->decode(tokenizer_of(j)->encode("\xEF\xAC\x81X\xC2\xB2")), "fix2");
}

TEST(JsonTokenizer, TokensInsideACharacterGetItsWholeRange) {
  const auto t = tokenizer_of(byte_level({}));
  const auto placed = t->encode_placed("x\xE2\x82\xAC");
  ASSERT_EQ(placed.size(), 4u);
  for (std::size_t i = 1; i < 4; ++i) {
    EXPECT_EQ(placed[i].begin, 1u);
    EXPECT_EQ(placed[i].end, 4u);
  }
}

TEST(JsonTokenizer, ABlankIsAddedInFrontAndUnknownTextBecomesBytes) {
  const auto t = tokenizer_of(like_llama2());
  EXPECT_EQ(t->encode("ab b"), (Ids{4, 3, 1, 3}));
  EXPECT_EQ(t->encode("a\xC3\xA9"), (Ids{4, 6 + 0xC3, 6 + 0xA9}));
  EXPECT_EQ(t->decode(t->encode(" a \xC3\xA9 b")), " a \xC3\xA9 b");
  EXPECT_TRUE(t->blank_in_front());
  Ids more;
  t->encoder()->encode_continuation("ab", more);
  EXPECT_EQ(more, (Ids{5}));
  EncodeReport report;
  const auto none = tokenizer_of(like_llama2(false));
  EXPECT_EQ(none->encode("axyz\xC3\xA9"
                         "b",
                         &report),
            (Ids{4, 0, 3}));  // one token for the whole unknown text
  EXPECT_EQ(report.unknown, 4);
}

TEST(JsonTokenizer, TokensAroundATextComeFromThePostProcessor) {
  Json j = byte_level({});
  add_token(j, "<|begin|>", {{"special", true}});
  j["post_processor"] = {
      {"type", "TemplateProcessing"},
      {"single",
       {{{"SpecialToken", {{"id", "<|begin|>"}, {"type_id", 0}}}}, {{"Sequence", {{"id", "A"}, {"type_id", 0}}}}}},
      {"special_tokens", {{"<|begin|>", {{"id", "<|begin|>"}, {"ids", {256}}}}}}};
  const auto t = tokenizer_of(j);
  EXPECT_EQ(t->before_text(), (Ids{256}));
  EXPECT_TRUE(t->after_text().empty());
  EXPECT_EQ(t->encode("a"), (Ids{'a'}));
}

TEST(JsonTokenizer, AFolderWithTheFileIsATokenizer) {
  TempFolder folder;
  Json j = byte_level({{"a", "b"}});
  write_text(folder / "model/tokenizer.json", j.dump());
  write_text(folder / "model/chat_template.jinja", "{{ messages }}");
  const std::string model = folder / "model";
  EXPECT_EQ(load_tokenizer(model)->hash(), load_tokenizer(model + "/tokenizer.json")->hash());
  for (const std::string& name : {model, model + "/", model + "/tokenizer.json"})
    EXPECT_EQ(chat_format_beside(name).source, "{{ messages }}") << name;
  write_text(model + "/tokenizer.json", "{}");
  expect_error([&] { load_tokenizer(model); }, {"tokenizer '" + model + "': ", "tokenizer.json"});
  save_tokenizer(*bytes_tokenizer(), model + "/tokenizer.rmt");
  EXPECT_EQ(load_tokenizer(model)->kind(), "bytes");
  write_text(folder / "gpt2/merges.txt", "a b");
  expect_error([&] { load_tokenizer(folder / "gpt2"); },
               {"merges.txt, which is not supported", "tokenizer.json of the same"});
}

TEST(JsonTokenizer, FilesKeepTheTokenizerUnchanged) {
  TempFolder folder;
  Json j = byte_level({{"a", "b"}});
  add_token(j, "<s>", {{"special", true}});
  add_token(j, "</s>", {{"special", true}});
  const std::string text = j.dump(1);
  write_text(folder / "tokenizer.json", text);
  const auto t = load_tokenizer(folder / "tokenizer.json");
  EXPECT_EQ(t->end_of_text(), 258);  // found by its name
  write_text(folder / "tokenizer_config.json", R"({"eos_token": {"content": "<s>"}})");
  const auto other = load_tokenizer(folder / "tokenizer.json");
  EXPECT_EQ(other->end_of_text(), 257);
  EXPECT_NE(other->hash(), t->hash());
  save_tokenizer(*other, folder / "a.rmt");
  const auto again = load_tokenizer(folder / "a.rmt");
  EXPECT_EQ(again->hash(), other->hash());
  EXPECT_EQ(again->end_of_text(), 257);
  EXPECT_TRUE(again->serialize().starts_with("ringmaster tokenizer 2\n"));
  write_text(folder / "tokenizer_config.json", R"({"eos_token": "<s>", "bos_token": {"content": "</s>"}})");
  const auto begun = load_tokenizer(folder / "tokenizer.json");
  EXPECT_EQ(begun->begin_of_text(), 258);
  EXPECT_EQ(begun->hash(), again->hash()) << "corpora of both have the same tokens";
  save_tokenizer(*begun, folder / "c.rmt");
  const auto kept = load_tokenizer(folder / "c.rmt");
  EXPECT_EQ(kept->begin_of_text(), 258);
  EXPECT_EQ(kept->end_of_text(), 257);
  EXPECT_EQ(kept->plain_file(), text);
  EXPECT_TRUE(kept->serialize().starts_with("ringmaster tokenizer 3\n"));
  save_tokenizer(*again, folder / "b.json");
  EXPECT_EQ(read_file(folder / "b.json"), text);
  expect_error([&] { save_tokenizer(*again, folder / "b.model"); }, {"b.model", "tokenizer.json", ".rmt"});
  expect_error([&] { save_tokenizer(*bytes_tokenizer(), folder / "c.json"); }, {"c.json", "bytes", ".rmt"});
  write_text(folder / "tokenizer_config.json", R"({"eos_token": "<eos>"})");
  expect_error([&] { load_tokenizer(folder / "tokenizer.json"); }, {"tokenizer_config.json", "eos_token", "<eos>"});
}

// A long document is encoded in pieces. Only the first piece has the blank in front.
TEST(JsonTokenizer, DocumentsOfCorporaGetTheTokensAroundAText) {
  TempFolder folder;
  Json j = like_llama2();
  add_token(j, "<s>", {{"special", true}});   // 262
  add_token(j, "</s>", {{"special", true}});  // 263
  j["post_processor"] = {{"type", "TemplateProcessing"},
                         {"single", {{{"SpecialToken", {{"id", "<s>"}}}}, {{"Sequence", {{"id", "A"}}}}}},
                         {"special_tokens", {{"<s>", {{"ids", {262}}}}}}};
  write_text(folder / "tokenizer.json", j.dump());
  std::string text;
  while (text.size() < 2'000'000) text += "ab b a ";
  const std::vector<std::string> documents{"ab b", text};
  for (std::size_t d = 0; d < 2; ++d) write_text(folder / ("in/" + std::to_string(d)), documents[d]);
  PrepareOptions o{.inputs = {folder / "in"}, .tokenizer = folder / "tokenizer.json", .output = folder / "c.h5"};
  o.validation_fraction = 0;
  prepare_corpus(o);
  const auto store = TokenStore::open(o.output);
  const auto t = store->tokenizer();
  ASSERT_EQ(store->train().documents(), 2u);
  for (std::size_t d = 0; d < 2; ++d) {
    Ids expected{262}, found(store->train().document_start(d + 1) - store->train().document_start(d));
    for (const PlacedToken& p : t->encode_placed(documents[d])) expected.push_back(p.id);
    expected.push_back(263);
    store->train().read(store->train().document_start(d), found.size(), found.data());
    EXPECT_TRUE(found == expected) << "document " << d;
  }
}

// Returns a text with many kinds of places at which it may be split.
std::string random_text(std::mt19937& random, std::size_t parts) {
  static const std::vector<std::string> kinds{
      "word", "Word", " ",        "  ",        "\n",           "\r\n", "12",   "3",  ".", ");",
      "'s",   "\t",   "\xC3\xA9", "e\xCC\x81", "\xE6\x97\xA5", "<m>",  "\xFF", "ab", "a"};
  std::string text;
  for (std::size_t i = 0; i < parts; ++i) text += kinds[random() % kinds.size()];
  return text;
}

TEST(JsonTokenizer, SafePrefixesDoNotChangeTheTokens) {
  std::mt19937 random(7);
  std::vector<Json> files{byte_level({{"a", "b"}, {"o", "r"}, {"\u0120", "a"}}), like_llama2()};
  for (const auto p : {bpe::Pattern::llama3, bpe::Pattern::qwen2})
    files.push_back(byte_level({{"a", "b"}, {"w", "o"}, {"\u010a", "\u010a"}}, std::string(bpe::regex_of(p))));
  for (Json& j : files) add_token(j, "<m>", {{"special", true}});
  std::size_t cuts = 0;
  for (const Json& j : files) {
    const auto t = tokenizer_of(j);
    for (int round = 0; round < 300; ++round) {
      const std::string text = random_text(random, 1 + random() % 30);
      const std::size_t seen = random() % (text.size() + 1);
      const std::size_t safe = t->safe_prefix(std::string_view(text).substr(0, seen));
      ASSERT_LE(safe, seen);
      if (safe == 0) continue;
      ++cuts;
      Ids both;
      const auto encoder = t->encoder();
      encoder->encode(std::string_view(text).substr(0, safe), both);
      encoder->encode_continuation(std::string_view(text).substr(safe), both);
      ASSERT_EQ(both, t->encode(text)) << text << " cut at " << safe;
    }
  }
  EXPECT_GT(cuts, 500u);
}

TEST(JsonTokenizer, CachedWordsGiveTheSameTokens) {
  std::mt19937 random(3);
  const auto t = tokenizer_of(byte_level({{"a", "b"}, {"o", "r"}, {"or", "d"}, {"\u0120", "w"}}));
  const std::string text = random_text(random, 20000);
  Ids apart;
  for (const PlacedToken& p : t->encode_placed(text)) apart.push_back(p.id);
  EXPECT_EQ(t->encode(text), apart);
  EXPECT_EQ(t->decode(apart), text);
}

struct BadFile {
  std::string name;
  std::function<void(Json&)> spoil;
  std::vector<std::string> says;
};
void PrintTo(const BadFile& b, std::ostream* out) { *out << b.name; }

class BadTokenizerJson : public testing::TestWithParam<BadFile> {};

TEST_P(BadTokenizerJson, IsRefusedWithFileAndKey) {
  Json j = byte_level({{"a", "b"}});
  add_token(j, "<x>");
  GetParam().spoil(j);
  std::vector<std::string> says = GetParam().says;
  says.push_back("t.json");
  expect_error([&] { tokenizer_of(j); }, says);
}

INSTANTIATE_TEST_SUITE_P(
    Keys, BadTokenizerJson,
    testing::Values(
        BadFile{"type", [](Json& j) { j["model"]["type"] = "WordPiece"; }, {"model.type", "WordPiece", "BPE"}},
        BadFile{"twice", [](Json& j) { j["model"]["vocab"]["zz"] = 5; }, {"model.vocab", "5", "same id"}},
        BadFile{"negative", [](Json& j) { j["model"]["vocab"]["zz"] = -1; }, {"model.vocab.zz", "expected an integer"}},
        BadFile{"huge",
                [](Json& j) { j["model"]["vocab"]["zz"] = 16'000'000; },
                {"model.vocab.zz", "too large for a vocabulary"}},
        BadFile{
            "fraction", [](Json& j) { j["model"]["vocab"]["zz"] = 0.5; }, {"model.vocab.zz", "expected an integer"}},
        BadFile{"empty", [](Json& j) { j["model"]["vocab"] = Json::object(); }, {"model.vocab", "object"}},
        BadFile{"merge",
                [](Json& j) { j["model"]["merges"].push_back("a q"); },
                {"merges[1]", "'aq' is not in the vocabulary"}},
        BadFile{"merge_shape", [](Json& j) { j["model"]["merges"].push_back("abc"); }, {"merges[1]", "a b"}},
        BadFile{"merge_pair",
                [](Json& j) {
                  j["model"]["merges"].push_back({"a", 1});
                },
                {"merges[1]", "a b"}},
        BadFile{"dropout", [](Json& j) { j["model"]["dropout"] = 0.1; }, {"model.dropout", "0.1"}},
        BadFile{"suffix", [](Json& j) { j["model"]["end_of_word_suffix"] = "</w>"; }, {"end_of_word_suffix"}},
        BadFile{"unknown", [](Json& j) { j["model"]["unk_token"] = "<u>"; }, {"model.unk_token", "<u>"}},
        BadFile{"normalizer",
                [](Json& j) {
                  j["normalizer"] = {{"type", "Bert"}};
                },
                {"normalizer.type", "Bert", "NFC"}},
        BadFile{"pre_tokenizer",
                [](Json& j) {
                  j["pre_tokenizer"] = {{"type", "Whitespace"}};
                },
                {"pre_tokenizer.type", "Whitespace", "ByteLevel"}},
        BadFile{"order",
                [](Json& j) {
                  j["pre_tokenizer"] = {{"type", "Sequence"},
                                        {"pretokenizers", {j["pre_tokenizer"], {{"type", "Digits"}}}}};
                },
                {"pretokenizers[1]", "ByteLevel"}},
        BadFile{"decoder",
                [](Json& j) {
                  j["decoder"] = {{"type", "CTC"}};
                },
                {"decoder.type", "CTC"}},
        BadFile{"no_decoder", [](Json& j) { j["decoder"] = nullptr; }, {"decoder", "null"}},
        BadFile{"post_processor",
                [](Json& j) {
                  j["post_processor"] = {{"type", "BertProcessing"}};
                },
                {"post_processor.type", "BertProcessing"}},
        BadFile{"added_number",
                [](Json& j) { j["added_tokens"][0]["id"] = 900; },
                {"added_tokens[0].id", "900", "should have the id 257"}},
        BadFile{"added_twice",
                [](Json& j) { j["added_tokens"].push_back(j["added_tokens"][0]); },
                {"added_tokens[1].content", "twice"}},
        BadFile{"added_empty", [](Json& j) { j["added_tokens"][0]["content"] = ""; }, {"added_tokens[0].content"}},
        BadFile{"text", [](Json& j) { j["decoder"]["type"] = 3; }, {"decoder.type", "expected a string"}},
        BadFile{"decoder_missing", [](Json& j) { j.erase("decoder"); }, {"t.json: decoder is missing"}},
        BadFile{"model", [](Json& j) { j.erase("model"); }, {"no key 'model'"}}),
    [](const auto& info) { return info.param.name; });

TEST(JsonTokenizer, DamagedFilesAreNamed) {
  expect_error([] { json_tokenizer("{\"model\": ", "t.json"); }, {"t.json cannot be read as JSON"});
  expect_error([] { json_tokenizer("[]", "t.json"); }, {"t.json", "expected a JSON object"});
  expect_error([] { json_tokenizer(std::string(100, '['), "t.json"); }, {"t.json", "levels deep"});
  const std::string twice =
      R"({"model": {"vocab": {"a": 0, "b": 1, "a": 2}, "merges": []}, "decoder": {"type": "Fuse"}})";
  expect_error([&] { json_tokenizer(twice, "t.json"); }, {"t.json", "the key 'a' twice"});
  for (const char* end : {"end_of_text 300\n", "end_of_text x\n", "end_of_text -1\n", "end 1\n", ""})
    expect_error([&] { json_tokenizer_of(end + byte_level({}).dump(), "t.rmt"); }, {"t.rmt is damaged"});
}

TEST(JsonTokenizer, OtherPatternsNeedPcre2) {
  Json j = byte_level({{"a", "b"}}, R"(\d+|[^\d])");
#ifdef RING_WITH_PCRE2
  for (const char* refused : {R"(\w+)", "^a", "[a&&b]", R"(\p{N}{1,3}+)", "(?m:a)", R"(\b)", "[[a]]"})
    expect_error([&] { tokenizer_of(byte_level({}, refused)); }, {"Regex", "PCRE2"});
#endif
  j["pre_tokenizer"]["pretokenizers"][0]["pattern"] = {{"String", "[a"}};  // not a valid pattern
#ifdef RING_WITH_PCRE2
  expect_error([&] { tokenizer_of(byte_level({}, "[a")); }, {"Regex", "not a valid pattern"});
#else
  expect_error([&] { tokenizer_of(byte_level({}, "[a")); }, {"Regex", "libpcre2-dev"});
#endif
  const auto t = tokenizer_of(j);
  EXPECT_EQ(t->encode("ab[ab"), (Ids{256, '[', 'a', 'b'}));
}

TEST(TrainedByteBpe, MergesTheMostFrequentPairs) {
  const auto train = [](const std::string& text, std::int64_t size) {
    return bpe::train_byte_bpe([&](const auto& take) { take(text); }, {.vocab_size = size});
  };
  // The words are hug 10, pug 5, pun 12, bun 4, hugs 5: ug (20) is merged first, then un (16), then hug (15).
  std::string text;
  for (const auto& [word, count] :
       std::map<std::string, int>{{"hug", 10}, {"pug", 5}, {"pun", 12}, {"bun", 4}, {"hugs", 5}})
    for (int i = 0; i < count; ++i) text += word + "\n";
  const auto t = train(text, 260);
  EXPECT_EQ(t->vocab_size(), 260);
  EXPECT_EQ(t->end_of_text(), 0);
  EXPECT_EQ(t->piece(257), "ug");
  EXPECT_EQ(t->piece(258), "un");
  EXPECT_EQ(t->piece(259), "hug");
  EXPECT_EQ(t->hash(), train(text, 260)->hash());
  EXPECT_LT(train(text, 5000)->vocab_size(), 300);  // no pair is left to merge
  const std::string any = "bugs\xFF\n\xE6\x97\xA5";
  EXPECT_EQ(t->decode(t->encode(any)), any);
  expect_error([&] { train(text, 200); }, {"200 tokens is too small", "257"});
}

#endif

}  // namespace
}  // namespace ring
