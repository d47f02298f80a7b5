#include "text/tokenizer.h"

#include "core/hash.h"
#include "data/load_tokenizer.h"
#include "tests/data/corpus_case.h"
#include "text/utf8.h"

namespace ring {
namespace {

std::string every_byte() {
  std::string text;
  for (int i = 0; i < 256; ++i) text += static_cast<char>(i);
  return text;
}

TEST(Utf8, AcceptsExactlyWhatTheStandardAllows) {
  for (char32_t c : {0u, 0x7Fu, 0x80u, 0x7FFu, 0x800u, 0xD7FFu, 0xE000u, 0xFFFFu, 0x10000u, 0x10FFFFu}) {
    std::string text;
    utf8::append(text, c);
    ASSERT_EQ(utf8::valid_length(text), text.size()) << std::hex << static_cast<std::uint32_t>(c);
    EXPECT_EQ(utf8::decode(text, text.size()), c);
    for (std::size_t n = 1; n < text.size(); ++n) {
      EXPECT_EQ(utf8::valid_length(text.substr(0, n)), 0u);
      EXPECT_TRUE(utf8::is_incomplete(text.substr(0, n)));
    }
    EXPECT_FALSE(utf8::is_incomplete(text));
  }
  for (const char* bad : {"\x80", "\xC0\x80", "\xC1\xBF", "\xE0\x9F\xBF", "\xED\xA0\x80", "\xF0\x8F\xBF\xBF",
                          "\xF4\x90\x80\x80", "\xF5\x80\x80\x80", "\xFF", "\xE2(\xA1", "\xC3("}) {
    EXPECT_EQ(utf8::valid_length(bad), 0u) << bad;
    EXPECT_FALSE(utf8::is_incomplete(bad)) << bad;
  }
}

TEST(Utf8, PrefixesEndAtBoundaries) {
  const std::string text = "plain ascii text \xC3\xA9\xE2\x82\xAC\xF0\x9F\x98\x80 end";
  EXPECT_EQ(utf8::valid_prefix_length(text), text.size());
  EXPECT_EQ(utf8::valid_prefix_length("0123456789abcdef\xFFxyz"), 16u);
  EXPECT_EQ(utf8::count_characters(text), 17 + 3 + 4);
  EXPECT_EQ(utf8::floor_boundary(text, 18), 17u);
  EXPECT_EQ(utf8::floor_boundary(text, 22), 22u);
  EXPECT_EQ(utf8::floor_boundary(text, 25), 22u);
  EXPECT_EQ(utf8::floor_boundary(text, 1000), text.size());
}

TEST(BytesTokenizer, IsExactForEverything) {
  const auto t = bytes_tokenizer();
  EXPECT_EQ(t->vocab_size(), 257);
  EXPECT_EQ(t->end_of_text(), 256);
  const std::string text = every_byte() + every_byte();
  EncodeReport report;
  const auto ids = t->encode(text, &report);
  ASSERT_EQ(ids.size(), 512u);
  EXPECT_EQ(ids[300], 44);
  EXPECT_EQ(t->decode(ids), text);
  EXPECT_EQ(report.invalid_bytes + report.unknown, 0);
  EXPECT_EQ(t->bytes_of(256), "");
  EXPECT_EQ(t->piece(256), "<|endoftext|>");
  EXPECT_EQ(t->piece(10), "<0x0a>");
  EXPECT_EQ(t->piece('A'), "A");
  for (std::int32_t bad : {-1, 257}) {
    expect_error([&] { t->bytes_of(bad); }, {str("token ", bad), "bytes", "257 tokens"});
  }
}

TEST(CharsTokenizer, SortsItsCharacters) {
  const auto t = chars_tokenizer("hello \xC3\xA9\xE2\x82\xAC\n");
  EXPECT_EQ(t->vocab_size(), 8);  // newline, space, e, h, l, o, e acute, euro
  EXPECT_FALSE(t->end_of_text().has_value());
  EXPECT_EQ(t->encode("\n eh\xE2\x82\xAC"), (std::vector<std::int32_t>{0, 1, 2, 3, 7}));
  EXPECT_EQ(t->decode(t->encode("hello \xC3\xA9\n")), "hello \xC3\xA9\n");
  const auto with_end = chars_tokenizer("ab", true);
  EXPECT_EQ(with_end->vocab_size(), 3);
  EXPECT_EQ(with_end->end_of_text(), 2);
  EXPECT_EQ(with_end->bytes_of(2), "");
  EXPECT_NE(with_end->hash(), chars_tokenizer("ab")->hash());
}

TEST(CharsTokenizer, CountsCharactersThatItLacks) {
  EncodeReport report;
  const auto plain = chars_tokenizer("ab");
  EXPECT_EQ(plain->decode(plain->encode("axb\xFF\xC3\xA9", &report)), "ab");
  EXPECT_EQ(report.invalid_bytes, 1);
  EXPECT_EQ(report.unknown, 2);  // x and e acute
  report = {};
  const auto replacing = chars_tokenizer("ab\xEF\xBF\xBD");
  EXPECT_EQ(replacing->decode(replacing->encode("axb\xFF", &report)),
            "a\xEF\xBF\xBD"
            "b\xEF\xBF\xBD");
  EXPECT_EQ(report.invalid_bytes, 1);
  EXPECT_EQ(report.unknown, 1);
}

TEST(CharsTokenizer, BadCharactersAreRefused) {
  expect_error([] { chars_tokenizer(""); }, {"at least one character", "empty"});
  expect_error([] { chars_tokenizer("ab\xFF"); }, {"not UTF-8 at byte 2"});
}

TEST(CharsTokenizer, SafePrefixKeepsCharactersWhole) {
  const auto t = chars_tokenizer("ab");
  EXPECT_EQ(t->safe_prefix("ab\xE2\x82"), 2u);
  EXPECT_EQ(t->safe_prefix("ab\xE2\x82\xAC"), 5u);
  EXPECT_EQ(t->safe_prefix("\xF0\x9F\x98"), 0u);
  EXPECT_EQ(t->safe_prefix("ab\xFF"), 3u);
  EXPECT_EQ(t->safe_prefix(""), 0u);
}

TEST(Tokenizer, SerializedFormRestoresEverything) {
  TempFolder folder;
  for (const auto& t : {bytes_tokenizer(), chars_tokenizer("xyz\n\xC3\xA9"), chars_tokenizer("xyz", true)}) {
    const auto again = parse_tokenizer(t->serialize(), "memory");
    EXPECT_EQ(again->kind(), t->kind());
    EXPECT_EQ(again->vocab_size(), t->vocab_size());
    EXPECT_EQ(again->end_of_text(), t->end_of_text());
    EXPECT_EQ(again->hash(), t->hash());
    EXPECT_EQ(t->hash().size(), 16u);
    save_tokenizer(*t, folder / "t.rmt");
    EXPECT_EQ(load_tokenizer(folder / "t.rmt")->hash(), t->hash());
    expect_error([&] { save_tokenizer(*t, folder / "t.model"); }, {"t.model", std::string(t->kind()), ".rmt"});
  }
  EXPECT_EQ(load_tokenizer("bytes")->hash(), bytes_tokenizer()->hash());
  const std::string corpus = write_corpus(folder / "c.h5", counting(5, 3), {}, chars_tokenizer("xyz"));
  EXPECT_EQ(load_tokenizer(corpus)->hash(), chars_tokenizer("xyz")->hash());
}

TEST(Tokenizer, BadFilesAreNamed) {
  TempFolder folder;
  expect_error([&] { load_tokenizer(folder / "none.rmt"); },
               {"none.rmt", "No such file", "ringmaster tokenizer train"});
  expect_error([&] { load_tokenizer(folder.path()); }, {folder.path(), "expected a folder with tokenizer.rmt"});
  write_text(folder / "empty.rmt", "");
  expect_error([&] { load_tokenizer(folder / "empty.rmt"); }, {"empty.rmt", "an empty file"});
  write_text(folder / "text.model", "some text");
  expect_error([&] { load_tokenizer(folder / "text.model"); }, {"text.model", "neither", "SentencePiece", "9 bytes"});
  const auto bad = [&](const std::string& bytes, const std::vector<std::string>& parts) {
    write_text(folder / "bad.rmt", bytes);
    expect_error([&] { load_tokenizer(folder / "bad.rmt"); }, parts);
  };
  const auto hashed = [](const std::string& body) {
    return str("ringmaster tokenizer 2\nhash ", hex64(xxh3(body)), "\n", body);
  };
  bad("ringmaster tokenizer 1\nkind bytes\n",
      {"bad.rmt", "'ringmaster tokenizer 2'", "a different format", "train it"});
  bad("ringmaster tokenizer 2\n", {"bad.rmt is damaged", "hash"});
  bad("ringmaster tokenizer 2\nkind bytes\n", {"bad.rmt is damaged", "hash"});
  bad(hashed("words"), {"bad.rmt is damaged", "third line"});
  bad(hashed("kind words\n"), {"bad.rmt", "unknown kind 'words'", "bytes, chars, sentencepiece"});
  bad(hashed("kind chars\nabc"), {"bad.rmt is damaged", "fourth line"});
  bad(hashed("kind chars\nend_of_text 0\n"), {"at least one character"});
  bad(hashed("kind sentencepiece\nxyz"), {"bad.rmt is not a SentencePiece model"});
  expect_error([&] { save_tokenizer(*bytes_tokenizer(), folder / "no/t.rmt"); }, {"no/t.rmt", "does not exist"});
}

// The hash in the file detects any damage; no damaged file is read as a different tokenizer.
TEST(Tokenizer, EveryDamageOfAFileIsNamed) {
  TempFolder folder;
  const std::string path = folder / "t.rmt", good = chars_tokenizer("abcdefghij\n\xC3\xA9", true)->serialize();
  const auto damaged = [&](const std::string& bytes) {
    write_text(path, bytes);
    expect_error([&] { load_tokenizer(path); }, {"t.rmt"});
  };
  for (std::size_t bit = 0; bit < 8 * good.size(); ++bit) {
    std::string bytes = good;
    bytes[bit / 8] = static_cast<char>(bytes[bit / 8] ^ (1 << bit % 8));
    damaged(bytes);
  }
  for (std::size_t size = 0; size < good.size(); ++size) damaged(good.substr(0, size));
  damaged(good + "k");
  write_text(path, good);
  EXPECT_EQ(load_tokenizer(path)->vocab_size(), 13);
}

TEST(Tokenizer, AnUnexpectedTokenizerIsNamed) {
  TempFolder folder;
  const std::string path = folder / "t.rmt", here = chars_tokenizer("abc")->hash(), there = bytes_tokenizer()->hash();
  save_tokenizer(*chars_tokenizer("abc"), path);
  EXPECT_EQ(load_tokenizer(path, here, "run runs/a")->kind(), "chars");
  EXPECT_EQ(load_tokenizer(path, "", "run runs/a")->kind(), "chars");
  expect_error([&] { load_tokenizer(path, there, "run runs/a"); }, {"t.rmt", here, "run runs/a", there, "replaced"});
}

TEST(StreamDecoder, HoldsBackIncompleteCharacters) {
  StreamDecoder decoder(bytes_tokenizer());
  std::vector<std::string> shown;
  for (unsigned char c : std::string("a\xF0\x9F\x98\x80\xC3\xFF\xE2\x82")) shown.push_back(decoder.push(c));
  const std::string bad = "\xEF\xBF\xBD";
  EXPECT_EQ(shown, (std::vector<std::string>{"a", "", "", "", "\xF0\x9F\x98\x80", "", bad + bad, "", ""}));
  EXPECT_EQ(decoder.finish(), bad + bad);
  EXPECT_EQ(decoder.finish(), "");
  EXPECT_EQ(decoder.push(256), "");
}

}  // namespace
}  // namespace ring
