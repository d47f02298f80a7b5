#include <sentencepiece_processor.h>
#include <sentencepiece_trainer.h>

#include <random>

#include "core/files.h"
#include "data/encode_job.h"
#include "data/load_tokenizer.h"
#include "data/text_frame.h"
#include "tests/data/corpus_case.h"
#include "tests/error_of.h"
#include "text/sentencepiece_train.h"
#include "text/tokenizer.h"
#include "text/utf8.h"

namespace ring {
namespace {

// Returns text in a made-up language that has enough structure for a vocabulary: words, punctuation, indentation,
// newlines.
std::string sample(std::size_t bytes, unsigned seed) {
  std::mt19937 random(seed);
  const std::vector<std::string> syllables{"ka", "to", "mi", "ren", "sol", "va", "dor", "li", "pha", "que", "st", "un"};
  std::vector<std::string> words;
  for (int i = 0; i < 300; ++i) {
    std::string word;
    for (std::uint32_t s = 0; s < 1 + random() % 4; ++s) word += syllables[random() % syllables.size()];
    words.push_back(word);
  }
  std::string text;
  while (text.size() < bytes) {
    text += std::string(2 * (random() % 4), ' ');
    for (std::uint32_t w = 0; w < 3 + random() % 6; ++w)
      text += words[random() % words.size() * (random() % 3) / 3] + (random() % 5 ? " " : "(");
    text += random() % 4 ? ");\n" : " {\n\n";
  }
  return text;
}

std::shared_ptr<const Tokenizer> train(const std::string& text, const std::string& kind, std::int64_t vocab = 500,
                                       double coverage = 0.9995) {
  return train_sentencepiece([&](const auto& take) { take(text); },
                             {.kind = kind, .vocab_size = vocab, .character_coverage = coverage});
}

class SentencePiece : public testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(Kinds, SentencePiece, testing::Values("bpe", "unigram"));

const std::vector<std::string>& awkward_texts() {
  static const std::vector<std::string> texts{
      "",
      " ",
      "   ",
      "\n",
      "\n\n\n",
      "\t\t\tx",
      " leading",
      "trailing ",
      "a  b   c    d",
      "line\r\nline\r\n",
      "    if (x) {\n        y;\n    }\n",
      "caf\xC3\xA9 \xE6\x97\xA5\xE6\x9C\xAC\xE8\xAA\x9E \xF0\x9F\x98\x80\xF0\x9F\x98\x80",
      "<unk> <s> </s> <|endoftext|> <0x41>",
      std::string("nul \0 nul", 9),
      "\xEF\xBF\xBD and \xEF\xBB\xBF"
      "bom",
      "\xE2\x96\x81 the space symbol \xE2\x96\x81\xE2\x96\x81",
      "bad \xFF\xC3( bytes \xE2\x82",
      "\x01\x7F\x1B[0m"};
  return texts;
}

TEST_P(SentencePiece, RoundTripIsExactForAnyBytes) {
  const std::string text = sample(60000, 1);
  const auto t = train(text, GetParam());
  EXPECT_EQ(t->kind(), "sentencepiece");
  EXPECT_EQ(t->vocab_size(), 500);
  EXPECT_EQ(t->end_of_text(), 1);
  EXPECT_TRUE(t->decode(t->encode(text)) == text);
  EXPECT_LT(t->encode(text).size(), text.size() / 2) << "the vocabulary learned nothing";
  for (const std::string& awkward : awkward_texts()) {
    const auto ids = t->encode(awkward);
    EXPECT_EQ(t->decode(ids), awkward);
    for (std::int32_t id : ids) EXPECT_GT(id, 1) << "unknown or end-of-text in: " << awkward;
  }
  std::mt19937 random(7);
  for (int i = 0; i < 200; ++i) {
    std::string noise(random() % 60, ' ');
    for (char& c : noise) c = static_cast<char>(random() % (i % 2 ? 256 : 128));
    ASSERT_EQ(t->decode(t->encode(noise)), noise);
  }
}

TEST_P(SentencePiece, InvalidBytesAreCounted) {
  const auto t = train(sample(60000, 1), GetParam());
  EncodeReport report;
  t->encode("ok \xFF\xFE \xC3( \xE2\x96\x81 caf\xC3\xA9", &report);
  EXPECT_EQ(report.invalid_bytes, 3);
  EXPECT_EQ(report.unknown, 0);
}

// Encoding the pieces that safe_prefix() allows gives the tokens of the whole text, whatever the cache contains.
TEST_P(SentencePiece, EncodingInPiecesDoesNotChangeTheTokens) {
  const auto t = train(sample(60000, 1), GetParam());
  std::string text = sample(20000, 2);
  for (const std::string& awkward : awkward_texts()) text += awkward + text.substr(0, 100);
  const auto whole = t->encode(text);
  for (std::size_t step : {7, 100, 1000, 5000}) {
    const auto encoder = t->encoder();
    std::vector<std::int32_t> ids;
    std::string held;
    for (std::size_t i = 0; i < text.size(); i += step) {
      held += text.substr(i, step);
      const std::size_t cut = t->safe_prefix(held);
      ASSERT_LE(cut, held.size());
      encoder->encode(held.substr(0, cut), ids);
      held.erase(0, cut);
    }
    encoder->encode(held, ids);
    EXPECT_TRUE(ids == whole) << "in steps of " << step;
  }
}

TEST_P(SentencePiece, AHugeLineIsEncodedInReasonableTime) {
  const auto t = train(sample(60000, 1), GetParam());
  std::string line = sample(2000000, 3);
  for (char& c : line) c = c == '\n' ? ' ' : c;
  EXPECT_TRUE(t->decode(t->encode(line)) == line);
  std::string no_border;
  for (int i = 0; i < 100000; ++i) no_border += "\xE6\x97\xA5";
  EXPECT_TRUE(t->decode(t->encode(no_border)) == no_border);
}

TEST_P(SentencePiece, TrainingIsDeterministicAndFilesRestoreIt) {
  TempFolder folder;
  const std::string text = sample(60000, 1);
  const auto a = train(text, GetParam()), b = train(text, GetParam());
  EXPECT_EQ(a->hash(), b->hash());
  save_tokenizer(*a, folder / "t.rmt");
  save_tokenizer(*a, folder / "t.model");
  EXPECT_EQ(load_tokenizer(folder / "t.rmt")->hash(), a->hash());
  EXPECT_EQ(load_tokenizer(folder / "t.model")->hash(), a->hash());
  EXPECT_TRUE(read_file(folder / "t.rmt") != read_file(folder / "t.model"));
  EXPECT_NE(train(sample(60000, 5), GetParam())->hash(), a->hash());
}

TEST_P(SentencePiece, AVocabularyOfAnImpossibleSizeIsRefused) {
  const std::string kind = GetParam();
  const auto few = [&] { train("too little text for so many tokens. ", kind, 5000); };
  expect_error(few, {"the text yields a " + kind + " vocabulary of at most ",
                     " tokens, but --vocab-size asks for 5000. Provide more text, or use --"});
  EXPECT_EQ(error_of(few).find("trainer_interface.cc"), std::string::npos);
  std::string characters;  // each needs a token, besides 256 bytes, the end of text and the unknown token
  for (char32_t c = 0x4e00; c < 0x4e00 + 500; ++c) utf8::append(characters, c);
  expect_error(
      [&] { train(characters, kind, 300, 1.0); },
      {"the text needs at least 758 tokens for its characters and bytes, but --vocab-size asks for 300. Increase "
       "--vocab-size, or spell rare characters in bytes with a --character-coverage below 1"});
}

// Flips a bit, truncates, or overwrites a range.
std::string damaged(std::string bytes, std::mt19937& random) {
  const std::size_t at = random() % bytes.size();
  switch (random() % 3) {
    case 0: bytes[at] = static_cast<char>(bytes[at] ^ (1 << random() % 8)); break;
    case 1: bytes.resize(at); break;
    default:
      for (std::size_t i = at; i < std::min(bytes.size(), at + 1 + random() % 16); ++i)
        bytes[i] = static_cast<char>(random());
  }
  return bytes;
}

// Expects that an error names each damage of one of our files. A plain model has no hash: it may still be read, but
// must not crash.
void damage_600_times(const Tokenizer& t) {
  std::mt19937 random(11);
  const std::string ours = t.serialize(), plain = t.payload(), probe = sample(300, 2);
  int used = 0;
  for (int i = 0; i < 600; ++i) {
    const std::string bytes = damaged(ours, random);
    if (bytes != ours) {
      expect_error([&] { parse_tokenizer(bytes, "t.rmt"); }, {"t.rmt"});
    }
    try {
      const auto read = parse_tokenizer(damaged(plain, random), "t.model");
      read->decode(read->encode(probe));
      ++used;
    } catch (const Error& e) {
      EXPECT_NE(std::string(e.what()).find("t.model"), std::string::npos) << e.what();
    }
  }
  EXPECT_GT(used, 0);
  EXPECT_LT(used, 600);
}

TEST_P(SentencePiece, DamagedFilesAreNamed) { damage_600_times(*train(sample(60000, 1), GetParam(), 300)); }

// Trains a model with the SentencePiece library and its defaults, except for `settings`. Returns its path.
std::string train_with_library(const TempFolder& folder, std::unordered_map<std::string, std::string> settings) {
  write_text(folder / "text", sample(60000, 1));
  settings.insert(
      {{"input", folder / "text"}, {"model_prefix", folder / "m"}, {"vocab_size", "200"}, {"minloglevel", "1"}});
  const auto status = sentencepiece::SentencePieceTrainer::Train(settings);
  EXPECT_TRUE(status.ok()) << status.ToString();
  return folder / "m.model";
}

// The table replaces characters before the text is split.
TEST(SentencePieceModel, TablesOfReplacementsAreReadAndChecked) {
  TempFolder folder;
  const auto t = load_tokenizer(train_with_library(folder, {{"normalization_rule_name", "nmt_nfkc"}}));
  EXPECT_EQ(t->decode(t->encode("s\xEF\xBD\x94")), "st") << "a fullwidth t";
  damage_600_times(*t);
  std::string bytes = t->payload();
  const std::size_t table = bytes.find("nmt_nfkc") + 8;  // its length, then its index
  for (std::size_t i = 0; i < 4; ++i) bytes[table + 2000 + i] = '\x7F';
  expect_error([&] { parse_tokenizer(bytes, "t.model"); },
               {"t.model is damaged", "table of replacements", "points outside"});
}

TEST(SentencePieceModel, WordModelsAndSpacesAsSuffixesAreRefused) {
  TempFolder folder;
  const std::string file = train_with_library(folder, {{"treat_whitespace_as_suffix", "true"}});
  expect_error([&] { load_tokenizer(file); }, {file, "treat_whitespace_as_suffix", "not supported"});
  const std::string words = train_with_library(folder, {{"model_type", "word"}, {"hard_vocab_limit", "false"}});
  expect_error([&] { load_tokenizer(words); }, {words, "model_type word", "not supported"});
}

// Models of Llama 2 and Mistral ask for this blank.
TEST(SentencePieceModel, TheBlankInFrontIsAddedAndRemoved) {
  for (const bool blank : {true, false}) {
    TempFolder folder;
    const std::string file = train_with_library(folder, {{"normalization_rule_name", "identity"},
                                                         {"remove_extra_whitespaces", "false"},
                                                         {"add_dummy_prefix", blank ? "true" : "false"}});
    sentencepiece::SentencePieceProcessor library;
    ASSERT_TRUE(library.Load(file).ok());
    const auto t = load_tokenizer(file);
    EXPECT_EQ(t->blank_in_front(), blank);
    for (const std::string text : {"ka", "kato mi", "solva(dor renque );"}) {
      std::vector<std::int32_t> theirs;
      ASSERT_TRUE(library.Encode(text, &theirs).ok());
      EXPECT_EQ(t->encode(text), theirs) << text;
    }
    for (const std::string text : {"", " ", "ka", " ka", "  ka "}) EXPECT_EQ(t->decode(t->encode(text)), text);
    EXPECT_TRUE(t->encode("").empty());
  }
}

// The library does not find control symbols in a text, so that the expected tokens are those of the texts between them.
TEST(SentencePieceModel, TemplatesWriteControlSymbolsByName) {
  TempFolder folder;
  const std::string file = train_with_library(
      folder,
      {{"normalization_rule_name", "identity"}, {"remove_extra_whitespaces", "false"}, {"control_symbols", "<s>x"}});
  sentencepiece::SentencePieceProcessor library;
  ASSERT_TRUE(library.Load(file).ok());
  const auto t = load_tokenizer(file);
  const std::int32_t begin = library.bos_id(), end = library.eos_id(), longer = library.PieceToId("<s>x");
  std::vector<std::int32_t> expected;
  const auto expect = [&](const std::string& text, std::initializer_list<std::int32_t> then) {
    std::vector<std::int32_t> ids;
    ASSERT_TRUE(library.Encode(text, &ids).ok());
    expected.insert(expected.end(), ids.begin(), ids.end());
    expected.insert(expected.end(), then);
  };
  expect("", {begin});
  expect("(ka) kato", {end, begin});
  expect("(mi", {longer});
  const EncodeJob job{"<s>(ka) kato</s><s>(mi<s>x", {{.begin = 0, .end = 26, .first = true, .last = true}}};
  EXPECT_EQ(DocumentFrame(*t, DocumentShape::conversation).encode(job, *t->encoder()).tokens, expected);
  EXPECT_EQ(empty_text(*t), std::vector<std::int32_t>{begin});
  TempFolder other;
  const auto without = load_tokenizer(train_with_library(other, {{"bos_id", "-1"}}));
  EXPECT_EQ(empty_text(*without), std::vector<std::int32_t>{*without->end_of_text()});
}

// Expected tokens are the library's, for every normalization rule, with and without byte fallback.
TEST(SentencePieceModel, TokensMatchTheLibraryForEveryNormalization) {
  const std::vector<std::unordered_map<std::string, std::string>> models{
      {},  // nmt_nfkc, and blanks are removed
      {{"normalization_rule_name", "nfkc"}, {"byte_fallback", "true"}, {"vocab_size", "400"}},
      {{"normalization_rule_name", "nfkc"}, {"remove_extra_whitespaces", "false"}},
      {{"normalization_rule_name", "nfkc_cf"}, {"model_type", "bpe"}},
      {{"normalization_rule_name", "nmt_nfkc"}, {"user_defined_symbols", "<a>,\xEF\xAC\x81x"}},
      {{"normalization_rule_name", "identity"}, {"remove_extra_whitespaces", "false"}}};
  std::string long_text;
  for (int i = 0; i < 40; ++i) long_text += sample(300, static_cast<unsigned>(i)) + "\xEF\xBC\x91\xE6\x97\xA5\n";
  const std::vector<std::string> texts{"",
                                       " ",
                                       "\n \n",
                                       "ka",
                                       "  ka  to ",
                                       "kato\nmi\n",
                                       "end.\n\nThe",
                                       "\xEF\xAC\x81xne \xEF\xAC\x81ne <a> KA To",
                                       "cafe\xCC\x81 e\xCC\x81\xCC\x81",
                                       "ka\xC2\xA0to\xE3\x80\x80mi\tren",
                                       "\xEF\xBC\x91\xEF\xBC\x92 \xE2\x80\xA6 \xE2\x84\xA2 \xC2\xBD\xC2\xBD",
                                       "\xE6\x97\xA5\xE6\x97\xA5\n\xE6\x9B\xB0",
                                       "a\xC2\xADto \xE2\x80\x89ka\r\n",
                                       long_text};
  for (const auto& settings : models) {
    TempFolder folder;
    const std::string file = train_with_library(folder, settings);
    sentencepiece::SentencePieceProcessor library;
    ASSERT_TRUE(library.Load(file).ok());
    const auto t = load_tokenizer(file);
    for (const std::string& text : texts) {
      std::vector<std::int32_t> theirs, parts;
      ASSERT_TRUE(library.Encode(text, &theirs).ok());
      EXPECT_EQ(t->encode(text), theirs) << testing::PrintToString(settings) << " '" << text.substr(0, 40) << "'";
      const auto encoder = t->encoder();
      std::string held;
      bool first = true;
      const auto take = [&](std::size_t bytes) {
        const std::string part = held.substr(0, bytes);
        held.erase(0, bytes);
        if (part.empty()) return;
        std::exchange(first, false) ? encoder->encode(part, parts) : encoder->encode_continuation(part, parts);
      };
      for (std::size_t i = 0; i < text.size(); i += 50) held += text.substr(i, 50), take(t->safe_prefix(held));
      take(held.size());
      EXPECT_EQ(parts, theirs) << testing::PrintToString(settings) << " in parts";
    }
  }
}

TEST(SentencePieceModel, TheBlankInFrontIsNotPartOfTheText) {
  TempFolder folder;
  const auto t = load_tokenizer(train_with_library(folder, {{"normalization_rule_name", "identity"}}));
  const auto encoder = t->encoder();
  std::vector<std::int32_t> ids;
  encoder->encode("ka to", ids);
  encoder->encode_continuation(" mi", ids);  // no blank is added in front of a continuation
  EXPECT_EQ(ids, t->encode("ka to mi"));
  EXPECT_EQ(t->decode(ids), "ka to mi");
  const auto placed = t->encode_placed("ka to");
  EXPECT_EQ(placed.front().begin, 0u);
  EXPECT_EQ(placed.back().end, 5u);
}

TEST(SentencePieceModel, APieceWithoutTextIsNamed) {
  const auto t = train(sample(60000, 1), "unigram", 300);
  const std::string piece("\x0A\x07\x0A\x00\x15\x00\x00\x00\xBF", 9);  // the library throws, and nothing catches it
  expect_error([&] { parse_tokenizer(piece + t->payload(), "t.model"); },
               {"t.model is damaged", "its token 0 has no text"});
}

TEST(SentencePieceTrain, BadOptionsAreRefused) {
  expect_error([] { train("text", "wordpiece"); }, {"wordpiece", "bpe, unigram"});
  expect_error([] { train("text", "bpe", 100); }, {"100", "300 or more"});
}

TEST(SentencePieceTrain, AFailureOfTheSourceIsReported) {
  const TextSource source = [](const auto&) { fail("cannot open words.txt"); };
  try {
    train_sentencepiece(source, {.kind = "bpe", .vocab_size = 400});
    FAIL() << "no error";
  } catch (const Error& e) {
    EXPECT_STREQ(e.what(), "cannot open words.txt");
  }
}

}  // namespace
}  // namespace ring
