// Data sets of tokens in Megatron-LM's format, and corpora made from them. tests/inputs/against_megatron.py compares
// with files that Megatron-LM itself wrote.

#include "data/megatron.h"

#include <gtest/gtest.h>

#include <cstring>

#include "data/export_megatron.h"
#include "data/prepare.h"
#include "data/text_files.h"
#include "data/token_store.h"
#include "tests/data/megatron_files.h"
#include "text/tokenizer.h"
#include "text/utf8.h"

namespace ring {
namespace {

using Tokens = std::vector<std::int64_t>;
using TokenDocuments = std::vector<Tokens>;

class CollectedTokens final : public MegatronDataset::Sink {
 public:
  void add_part(std::span<const std::int32_t> tokens) override {
    EXPECT_FALSE(tokens.empty());
    open_.insert(open_.end(), tokens.begin(), tokens.end());
  }
  void end() override { documents.push_back(std::exchange(open_, {})); }
  TokenDocuments documents;

 private:
  Tokens open_;
};

TokenDocuments read(const std::string& prefix, std::uint64_t vocab_size = 60'000) {
  CollectedTokens collected;
  MegatronDataset(prefix).read(vocab_size, "tok.rmt", collected);
  return collected.documents;
}

template <class T>
void expect_type(std::uint8_t code, std::int64_t largest) {
  const TempFolder folder;
  MegatronFiles files;
  files.code = code;
  files.add_sequence<T>({1, 2, largest});
  files.add_sequence<T>({});
  files.add_sequence<T>({0, 4});
  files.end_document();
  files.end_document();  // a document without sequences
  files.add_document<T>({});
  files.add_document<T>({largest});
  files.write(folder / "d");
  EXPECT_EQ(read(folder / "d"), (TokenDocuments{{1, 2, largest, 0, 4}, {largest}})) << "code " << int{code};
  EXPECT_EQ(MegatronDataset(folder / "d").tokens(), 6u);
}

TEST(Megatron, EveryTokenTypeIsRead) {
  expect_type<std::uint8_t>(1, 255);
  expect_type<std::int8_t>(2, 127);
  expect_type<std::int16_t>(3, 32'767);
  expect_type<std::int32_t>(4, 59'999);
  expect_type<std::int64_t>(5, 59'999);
  expect_type<std::uint16_t>(8, 59'999);
}

TEST(Megatron, LongSequencesAreReadInParts) {
  const TempFolder folder;
  MegatronFiles files;
  TokenDocuments wanted;
  for (const std::size_t n : {std::size_t{3}, std::size_t{400'001}, std::size_t{131'072}, std::size_t{1}}) {
    Tokens tokens(n);
    for (std::size_t i = 0; i < n; ++i) tokens[i] = static_cast<std::int64_t>(i * 7919 % 60'000);
    files.add_document<std::uint16_t>(tokens);
    wanted.push_back(std::move(tokens));
  }
  files.write(folder / "d");
  EXPECT_EQ(read(folder / "d"), wanted);
}

TEST(Megatron, ADocumentMayHaveManySequences) {
  const TempFolder folder;
  MegatronFiles files;
  TokenDocuments wanted;
  for (int d = 0; d < 3; ++d) {
    Tokens all;
    for (int s = 0; s < 40'000; ++s) {  // tables longer than one read
      files.add_sequence<std::uint16_t>({d, s});
      all.insert(all.end(), {d, s});
    }
    files.end_document();
    wanted.push_back(std::move(all));
  }
  files.write(folder / "d");
  EXPECT_EQ(read(folder / "d"), wanted);
}

MegatronFiles sample() {
  MegatronFiles files;
  files.add_document<std::uint16_t>({5, 6, 7});
  files.add_document<std::uint16_t>({8, 9});
  return files;
}

// Expects that reading the sample after change(files) fails with these parts in the error.
template <class F>
void expect_damage(F&& change, const std::vector<std::string>& parts) {
  const TempFolder folder;
  MegatronFiles files = sample();
  change(files);
  files.write(folder / "d");
  expect_error([&] { read(folder / "d"); }, parts);
}

TEST(Megatron, DamageIsNamed) {
  expect_damage([](auto& f) { f.magic[0] = 'X'; }, {"d.idx is not a Megatron-LM index", "copy both files again"});
  expect_damage([](auto& f) { f.version = 2; }, {"d.idx has version 2", "reads version 1", "preprocess_data"});
  expect_damage([](auto& f) { f.code = 7; }, {"d.idx", "code 7, a floating-point type", "token ids"});
  expect_damage([](auto& f) { f.code = 9; }, {"d.idx", "code 9"});
  expect_damage([](auto& f) { f.lengths[0] = -3; }, {"d.idx is damaged", "sequence 0 has -3 tokens"});
  expect_damage([](auto& f) { f.starts[0] = -2; }, {"d.idx is damaged", "from byte -2"});
  expect_damage([](auto& f) { f.starts[1] = 4; }, {"its sequence 1 has 2 tokens from byte 4", "ends at byte 6"});
  expect_damage([](auto& f) { f.lengths[1] = 2'000'000'000; }, {"d.bin has 10 bytes", " or later: the two files"});
  expect_damage([](auto& f) { f.bin += "xy"; }, {"d.bin has 12 bytes", "end at byte 10: the two files do not match"});
  expect_damage([](auto& f) { f.bin.pop_back(); }, {"d.bin has 9 bytes", "end at byte 10 or later"});
  expect_damage([](auto& f) { f.documents = {1, 2, 2}; }, {"document 0 starts with sequence 1"});
  expect_damage([](auto& f) { f.documents = {0, 2, 1}; }, {"document 2 starts with sequence 1", "before with 2"});
  expect_damage([](auto& f) { f.documents = {0, 1}; }, {"end with sequence 1", "2 sequences"});
  expect_damage([](auto& f) { f.documents = {0, 1, 3}; }, {"end with sequence 3", "2 sequences"});
  expect_damage([](auto& f) { f.documents = {}; }, {"end with sequence 0", "2 sequences"});
}

// The fields for the lengths of the tables may contain any 64 bits.
TEST(Megatron, AbsurdHeadersAreRefused) {
  const TempFolder folder;
  const std::string whole = sample().index();
  for (const std::size_t at : {std::size_t{18}, std::size_t{26}})
    for (const std::uint64_t count :
         {~std::uint64_t{0}, std::uint64_t{1} << 63, std::uint64_t{1} << 61, std::uint64_t{0x1555555555555556}}) {
      sample().write(folder / "d");
      std::string damaged = whole;
      std::memcpy(damaged.data() + at, &count, sizeof(count));
      write_text(folder / "d.idx", damaged);
      expect_error([&] { read(folder / "d"); },
                   {"d.idx is truncated or damaged", "it has 82 bytes", str(count), "copy both files again"});
    }
  for (std::size_t n = 0; n < whole.size(); ++n) {
    write_text(folder / "d.idx", whole.substr(0, n));
    const std::string has = str("d.idx is truncated", n < 34 ? "" : " or damaged", ": it has ", n, " bytes");
    expect_error([&] { read(folder / "d"); }, {has, n < 34 ? "at least 34" : "need 82", "copy both files again"});
  }
  write_text(folder / "d.idx", whole + "x");
  expect_error([&] { read(folder / "d"); }, {"d.idx is damaged", "end at byte 82", "83 bytes"});
  write_text(folder / "d.idx", whole + std::string("\1\0", 2));
  expect_error([&] { read(folder / "d"); }, {"d.idx belongs to a multimodal"});
  write_text(folder / "d.idx", whole);
  std::filesystem::remove(folder / "d.bin");
  expect_error([&] { read(folder / "d"); }, {"d.bin is missing", "d.idx with their index"});
}

TEST(Megatron, TokensOutsideOfTheVocabularyAreNamed) {
  const TempFolder folder;
  sample().write(folder / "d");
  EXPECT_EQ(read(folder / "d", 10), (TokenDocuments{{5, 6, 7}, {8, 9}}));
  expect_error([&] { read(folder / "d", 9); },
               {"d.bin: token 4, in document 1", "vocabulary of tok.rmt", "9 tokens", "--tokenizer"});
  MegatronFiles negative;
  negative.code = 4;
  negative.add_document<std::int32_t>({1, -1});
  negative.write(folder / "n");
  expect_error([&] { read(folder / "n"); }, {"n.bin: token 1, in document 0"});
}

struct MegatronFolder : TempFolder {
  PrepareOptions options() const {
    PrepareOptions o;
    o.inputs = {*this / "in"};
    o.tokenizer = "bytes";
    o.output = *this / "out.h5";
    o.validation_fraction = 0;
    return o;
  }
};

Tokens bytes_of(const std::string& text, bool end = true) {
  Tokens tokens;
  for (const char c : text) tokens.push_back(static_cast<unsigned char>(c));
  if (end) tokens.push_back(256);
  return tokens;
}

TEST(MegatronCorpus, EqualsTheCorpusOfTheText) {
  MegatronFolder folder, plain;
  MegatronFiles with, without;
  std::string lines;
  for (int i = 0; i < 500; ++i) {
    const std::string text = str("document ", i * i, " caf\xC3\xA9");
    with.add_document<std::uint16_t>(bytes_of(text));
    without.add_document<std::uint16_t>(bytes_of(text, false));
    lines += text + "\n";
  }
  with.write(folder / "in/a");
  PrepareOptions o = folder.options();
  const PrepareReport report = prepare_corpus(o);
  EXPECT_EQ(report.ends_added, 0u);
  EXPECT_EQ(report.files, 1u);
  write_text(plain / "in/a.txt", lines);
  PrepareOptions text = plain.options();
  text.document = "line";
  const PrepareReport of_text = prepare_corpus(text);
  const auto one = TokenStore::open(o.output), other = TokenStore::open(text.output);
  EXPECT_EQ(one->train().tokens_hash(), other->train().tokens_hash());
  EXPECT_EQ(one->train().text_bytes(), other->train().text_bytes());
  EXPECT_EQ(report.longest, of_text.longest);
  EXPECT_EQ(one->source(), "1 file, a.bin; documents: from Megatron-LM's index; split: hash 0");

  without.write(folder / "in/a");
  EXPECT_EQ(prepare_corpus(o).ends_added, 500u);
  EXPECT_EQ(TokenStore::open(o.output)->train().tokens_hash(), other->train().tokens_hash());
}

// A blank that the encoder puts in front of a text is not part of the text, whatever token precedes it.
TEST(MegatronCorpus, TextBytesCountTheDecodedText) {
  const MegatronFolder folder;
  const auto special = [](int id, const char* name) {
    return str("{\"id\": ", id, ", \"content\": \"", name, "\", \"special\": true, \"normalized\": false, \"lstrip\": ",
               "false, \"rstrip\": false, \"single_word\": false}");
  };
  write_text(
      folder / "tok.json",
      str("{\"added_tokens\": [", special(4, "<s>"), ", ", special(5, "</s>"), "], \"normalizer\": {\"type\": ",
          R"("Sequence", "normalizers": [{"type": "Prepend", "prepend": "\u2581"}, {"type": "Replace", )",
          R"("pattern": {"String": " "}, "content": "\u2581"}]}, "post_processor": null, "pre_tokenizer": null, )",
          R"("decoder": {"type": "Sequence", "decoders": [{"type": "Replace", "pattern": {"String": "\u2581"}, )",
          R"("content": " "}, {"type": "ByteFallback"}, {"type": "Fuse"}, {"type": "Strip", "content": " ", )",
          R"("start": 1, "stop": 0}]}, "model": {"type": "BPE", "vocab": {"<unk>": 0, "\u2581": 1, "a": 2, )",
          R"("b": 3, "<s>": 4, "</s>": 5}, "merges": [], "unk_token": "<unk>", "fuse_unk": true, )",
          R"("byte_fallback": false}})"));
  MegatronFiles files;
  files.add_document<std::uint16_t>({4, 1, 2, 1, 3, 5});  // "a b"
  files.add_document<std::uint16_t>({1, 2, 5});           // "a"
  files.add_document<std::uint16_t>({2, 1, 5});           // "a "
  files.add_document<std::uint16_t>({4, 5});              // empty
  files.write(folder / "in/a");
  PrepareOptions o = folder.options();
  o.tokenizer = folder / "tok.json";
  const PrepareReport report = prepare_corpus(o);
  EXPECT_TRUE(report.tokenizer->blank_in_front());
  EXPECT_EQ(report.ends_added, 0u);
  EXPECT_EQ(report.bytes, 6u);
  EXPECT_EQ(TokenStore::open(o.output)->train().text_bytes(), 6u);
}

TEST(MegatronCorpus, PairsAreFoundOnceByEitherName) {
  MegatronFolder folder;
  sample().write(folder / "in/sub/a");
  PrepareOptions o = folder.options();
  for (const std::vector<std::string>& inputs : {std::vector{folder / "in"},
                                                 {folder / "in/sub/a.bin"},
                                                 {folder / "in/sub/a.idx"},
                                                 {folder / "in/sub/a.bin", folder / "in/sub/a.idx", folder / "in"}}) {
    o.inputs = inputs;
    const PrepareReport report = prepare_corpus(o);
    EXPECT_EQ(report.files, 1u);
    EXPECT_EQ(report.documents[0], 2u);
  }
}

// The index is truncated at every length, also within its magic. With one byte per token and no NUL, the tokens alone
// look like text.
TEST(MegatronCorpus, ATruncatedIndexIsRefused) {
  MegatronFolder folder;
  MegatronFiles files;
  files.code = 1;
  files.add_document<std::uint8_t>({'t', 'e', 'x', 't'});
  files.write(folder / "in/a");
  PrepareOptions o = folder.options();
  for (std::size_t n = 0; n < files.index().size(); ++n) {
    write_text(folder / "in/a.idx", files.index().substr(0, n));
    for (const char* input : {"in", "in/a.bin", "in/a.idx"}) {
      o.inputs = {folder / input};
      expect_error([&] { prepare_corpus(o); },
                   {"a.idx is truncated", str("it has ", n, " bytes"), n < 34 ? "34" : "62"});
    }
  }
  std::filesystem::remove(folder / "in/a.bin");
  write_text(folder / "in/a.idx", "MMID");
  expect_error([&] { prepare_corpus(o); }, {"a.idx is truncated", "it has 4 bytes"});
}

TEST(MegatronCorpus, ValidationIsSplitByHashOrReadFromOtherFiles) {
  MegatronFolder folder;
  MegatronFiles files;
  for (int i = 0; i < 2000; ++i) files.add_document<std::uint16_t>({i % 256, 256});
  files.write(folder / "in/a");
  sample().write(folder / "in2/a");
  PrepareOptions o = folder.options();
  o.validation_fraction = 0.1;
  const PrepareReport hashed = prepare_corpus(o);
  EXPECT_EQ(hashed.documents[0] + hashed.documents[1], 2000u);
  EXPECT_NEAR(static_cast<double>(hashed.documents[1]), 200, 60);
  o.validation_inputs = {folder / "in2"};
  const PrepareReport own = prepare_corpus(o);
  EXPECT_EQ(own.documents[0], 2000u);
  EXPECT_EQ(own.documents[1], 2u);
  o.validation_inputs = {folder / "in"};
  expect_error([&] { prepare_corpus(o); }, {"a.bin is also in --input"});
}

TEST(MegatronCorpus, ContradictoryOptionsAndInputsAreRefused) {
  MegatronFolder folder;
  sample().write(folder / "in/a");
  const auto refused = [&](auto change, const std::vector<std::string>& parts) {
    PrepareOptions o = folder.options();
    change(o);
    expect_error([&] { prepare_corpus(o); }, parts);
    EXPECT_FALSE(std::filesystem::exists(o.output));
  };
  refused([](auto& o) { o.document = "line"; }, {"--document line splits text", "a.bin already holds tokens"});
  refused([](auto& o) { o.split = "tail"; }, {"--split tail splits text", "a.bin"});
  refused([](auto& o) { o.members.text = "text"; }, {"--text-field reads records", "a.bin"});
  refused([](auto& o) { o.members.messages = "messages"; }, {"--chat-field reads records", "a.bin"});
  refused([](auto& o) { o.tokenizer = "chars"; }, {"--tokenizer chars", "give the tokenizer"});
  write_text(folder / "text/b.txt", "text");
  refused([&](auto& o) { o.inputs.push_back(folder / "text"); }, {"a.bin already holds tokens", "b.txt", "--glob"});
  refused([&](auto& o) { o.validation_inputs = {folder / "text"}; }, {"a.bin", "b.txt", "the same form"});
  MegatronFiles empty;
  empty.write(folder / "in/a");
  refused([](auto&) {}, {"the input is empty"});
}

TEST(MegatronCorpus, OtherNamesAndUsesAreRefused) {
  const TempFolder folder;
  sample().write(folder / "a");
  const auto list = [&](const std::string& name) { list_text_files({folder / name}, "*"); };
  expect_error([&] { list("a.idx"); }, {"a.idx is not text", "a tokenizer needs the text"});
  std::filesystem::rename(folder / "a.idx", folder / "a.txt");
  expect_error([&] { list("a.txt"); }, {"index of a Megatron-LM data set", "named PREFIX.idx"});
  expect_error([&] { list("a.bin"); }, {"a.bin is not text", "put its index beside it"});
  write_text(folder / "old.idx", std::string("TNTIDX\0\0\1\0", 10));
  expect_error([&] { list("old.idx"); }, {"an old Megatron-LM data set", "--dataset-impl mmap"});
}

// A corpus is exported and imported again, with tokens that need 16 bits and with tokens that need 32.
TEST(MegatronExport, ImportGivesTheSameCorpus) {
  for (const bool narrow : {true, false}) {
    const MegatronFolder folder;
    std::string characters;
    for (char32_t c = 0x10000; c < 0x10000u + (narrow ? 16u : 70'000u); ++c) utf8::append(characters, c);
    const auto tokenizer = chars_tokenizer(characters, true);
    save_tokenizer(*tokenizer, folder / "tok.rmt");
    TokenStoreWriter writer(folder / "a.h5", tokenizer->vocab_size());
    for (int d = 0; d < 1000; ++d) {
      writer.begin_document(Split::train);
      std::vector<std::int32_t> ids(static_cast<std::size_t>(d % 7 == 0 ? 700 : d % 5));
      for (std::size_t i = 0; i < ids.size(); ++i)
        ids[i] = static_cast<std::int32_t>(i * 7919 % static_cast<std::size_t>(*tokenizer->end_of_text()));
      ids.push_back(*tokenizer->end_of_text());
      writer.append(Split::train, ids);
      writer.add_text_bytes(Split::train, tokenizer->decode(ids).size());
    }
    writer.finish(*tokenizer, "a test");
    const auto store = TokenStore::open(folder / "a.h5");
    std::filesystem::create_directories(folder / "in");
    export_megatron(store->train(), static_cast<std::uint64_t>(store->vocab_size()), folder / "in/b");
    EXPECT_EQ(MegatronDataset(folder / "in/b").token_bytes(), narrow ? 2u : 4u);
    PrepareOptions o = folder.options();
    o.tokenizer = folder / "tok.rmt";
    EXPECT_EQ(prepare_corpus(o).ends_added, 0u);
    const auto back = TokenStore::open(o.output);
    EXPECT_EQ(back->train().tokens_hash(), store->train().tokens_hash());
    EXPECT_EQ(back->train().text_bytes(), store->train().text_bytes());
  }
}

TEST(MegatronExport, MasksAndEmptySplitsAreRefused) {
  const TempFolder folder;
  TokenStoreWriter writer(folder / "m.h5", 257, true);
  writer.begin_document(Split::train);
  writer.append(Split::train, std::vector{1, 2}, false);
  writer.append(Split::train, std::vector{3});
  writer.finish(*bytes_tokenizer(), "a test");
  const auto store = TokenStore::open(folder / "m.h5");
  expect_error([&] { export_megatron(store->train(), 257, folder / "x"); },
               {"m.h5", "has a loss mask", "cannot store"});
  expect_error([&] { export_megatron(store->validation(), 257, folder / "x"); }, {"m.h5", "is empty"});
  EXPECT_FALSE(std::filesystem::exists(folder / "x.bin"));
}

}  // namespace
}  // namespace ring
