// JSON Lines and compressed text as documents, and corpora made from them.

#include "data/json_lines.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>

#include "core/check.h"
#include "core/files.h"
#include "data/documents.h"
#include "data/prepare.h"
#include "data/text_survey.h"
#include "data/token_store.h"
#include "data/unpack.h"
#include "tests/data/corpus_case.h"

namespace ring {
namespace {

class Collected final : public DocumentSink {
 public:
  void add_part(std::string_view text, bool) override { open_ += text; }
  void end() override { documents.push_back(std::exchange(open_, "")); }
  std::vector<std::string> documents;

 private:
  std::string open_;
};
using Documents = std::vector<std::string>;

Documents records(const std::string& text, const std::string& field, std::size_t block) {
  Collected collected;
  JsonLines lines("in.jsonl", make_record_parser({.text = field}, collected));
  for (std::size_t at = 0; at < text.size(); at += block) lines.add_block(std::string_view(text).substr(at, block));
  lines.on_end_of_file();
  return collected.documents;
}

TEST(JsonLines, TextsAreDocumentsForEveryBlockSize) {
  const std::string text =
      "{\"text\": \"one\\nline\", \"id\": 1}\r\n\n"
      "{\"id\": [2, {\"text\": 3}], \"text\": \"caf\\u00e9 \\ud83d\\ude00\"}\n"
      "{\"text\": \"\"}\n  \n{\"text\":\"last\"}";
  for (const std::size_t block : {std::size_t{1}, std::size_t{7}, text.size()})
    EXPECT_EQ(records(text, "text", block), (Documents{"one\nline", "caf\xC3\xA9 \xF0\x9F\x98\x80", "last"}));
  EXPECT_EQ(records("\n\n", "text", 1), Documents{});
}

TEST(JsonLines, ACarriageReturnAloneEndsALine) {
  const std::string text = "{\"text\": \"a\\rb\"}\r{\"text\": \"c\"}\r\r{\"text\": \"d\"}\r";
  for (const std::size_t block : {std::size_t{1}, std::size_t{7}, text.size()})
    EXPECT_EQ(records(text, "text", block), (Documents{"a\rb", "c", "d"}));
  EXPECT_EQ(records("{\"text\": \"a\"}\r{\"text\": \"b\"}\r\n{\"text\": \"c\"}", "text", 3),
            (Documents{"a", "b", "c"}));
}

TEST(JsonLines, AMemberOfAMemberIsNamedWithADot) {
  const std::string text =
      "{\"a\": {\"b\": {\"c\": \"deep\"}}}\n{\"a.b\": {\"c\": \"dotted\"}}\n{\"a.b.c\": \"whole\"}\n";
  EXPECT_EQ(records("{\"a\": {\"b\": {\"c\": \"deep\"}}}", "a.b.c", 5), Documents{"deep"});
  EXPECT_EQ(records("{\"a.b.c\": \"whole\", \"a\": {\"b\": {\"c\": \"deep\"}}}", "a.b.c", 5), Documents{"whole"});
  EXPECT_EQ(records("{\"a\": {\"b.c\": \"inner\"}}", "a.b.c", 5), Documents{"inner"});
}

TEST(JsonLines, ErrorsNameTheLineAndTheRemedy) {
  const std::string good = "{\"text\": \"a\"}\n";
  const auto fails = [&](const std::string& line, const std::vector<std::string>& parts) {
    for (const std::string& text : {line + "\n" + good, line}) {
      std::vector<std::string> all = parts;
      all.push_back("in.jsonl:3: ");
      expect_error([&] { records(good + "\n" + text, "text", 16); }, all);
    }
  };
  fails("{\"text\": \"a\"", {"cannot be read as JSON", "one whole object per line"});
  fails("{\"text\": \"a\"} {}", {"cannot be read as JSON"});
  fails("{\"text\": \"\xFF\"}", {"cannot be read as JSON", "UTF-8"});
  fails("{\"text\": \"\\ud800\"}", {"cannot be read as JSON", "surrogate"});
  fails(std::string(200'000, '['), {"cannot be read as JSON", "levels deep"});
  fails("[\"a\"]", {"is a JSON array", "one object per line"});
  fails("{\"body\": \"a\", \"id\": 1}", {"no 'text'", "members are: body, id", "--text-field"});
  fails("{}", {"no 'text'", "members are: none"});
  fails("{\"text\": null}", {"is a JSON null", "--text-field"});
  fails("{\"text\": {\"a\": 1}}", {"is a JSON object"});
}

struct LinesFolder : TempFolder {
  PrepareOptions options() {
    PrepareOptions o;
    o.inputs = {*this / "in"};
    o.tokenizer = "bytes";
    o.output = *this / "out.h5";
    o.validation_fraction = 0;
    o.threads = 2;
    return o;
  }
};

std::string numbered(int records) {
  std::string text;
  for (int i = 0; i < records; ++i) text += str("{\"id\": ", i, ", \"text\": \"record ", i * i, "\"}\n");
  return text;
}

// Compresses a file with the program of that name.
void compress(const std::string& program, const std::string& path) {
  const std::string command = program + " -q -f '" + path + "'" + (program == "zstd" ? " --rm" : "");
  ASSERT_EQ(std::system(command.c_str()), 0);
}
bool has_program(const std::string& program) {
  return std::system((program + " --version >/dev/null 2>&1").c_str()) == 0;
}

TEST(JsonLinesCorpus, EqualsTheCorpusOfItsTexts) {
  LinesFolder folder;
  write_text(folder / "in/a.jsonl", numbered(2000));
  PrepareOptions o = folder.options();
  const PrepareReport records = prepare_corpus(o);
  std::string text;
  for (int i = 0; i < 2000; ++i) text += str("record ", i * i, "\n");
  LinesFolder plain;
  write_text(plain / "in/a.txt", text);
  PrepareOptions lines = plain.options();
  lines.document = "line";
  prepare_corpus(lines);
  const auto one = TokenStore::open(o.output), other = TokenStore::open(lines.output);
  EXPECT_EQ(records.documents[0], 2000u);
  EXPECT_EQ(records.bytes, text.size() - 2000);
  EXPECT_EQ(one->train().tokens_hash(), other->train().tokens_hash());
}

TEST(JsonLinesCorpus, ContradictoryOptionsAreRefused) {
  LinesFolder folder;
  write_text(folder / "in/a.jsonl", numbered(20));
  PrepareOptions o = folder.options();
  o.document = "line";
  expect_error([&] { prepare_corpus(o); }, {"--document line", "a.jsonl", "each record is a document"});
  o = folder.options();
  o.split = "tail";
  expect_error([&] { prepare_corpus(o); }, {"--split tail", "a.jsonl", "--split hash"});
  o = folder.options();
  o.members.text = "body";
  expect_error([&] { prepare_corpus(o); }, {"a.jsonl:1: ", "no 'body'", "id, text"});
  EXPECT_FALSE(std::filesystem::exists(o.output));
}

TEST(JsonLinesCorpus, ValidationIsChosenByRecord) {
  LinesFolder folder;
  write_text(folder / "in/a.jsonl", numbered(2000));
  PrepareOptions o = folder.options();
  o.validation_fraction = 0.1;
  const PrepareReport r = prepare_corpus(o);
  EXPECT_EQ(r.documents[0] + r.documents[1], 2000u);
  EXPECT_NEAR(static_cast<double>(r.documents[1]), 200, 60);
}

TEST(JsonLinesCorpus, SamplesAndCharactersAreTakenFromTheTexts) {
  LinesFolder folder;
  write_text(folder / "in/a.jsonl", "{\"text\": \"ab\\u00e9\"}\n{\"text\": \"b\"}\n");
  const auto files = list_text_files({folder / "in"}, "*");
  std::string sample;
  sample_text(files, 1000, [&](std::string_view text) { sample += text; });
  EXPECT_EQ(sample, "ab\xC3\xA9\nb\n");
  EXPECT_EQ(text_size(files[0]), sample.size());
  EXPECT_EQ(count_characters(files).characters, "\nab\xC3\xA9");
}

class Packed : public testing::TestWithParam<std::pair<const char*, const char*>> {};

TEST_P(Packed, FilesAreReadLikeTheirContents) {
  const auto [program, ending] = GetParam();
  if (!has_program(program)) GTEST_SKIP() << "no program " << program;
  LinesFolder folder;
  std::string text;
  for (std::int64_t i = 0; i < 400000; ++i) text += str(i * 7919, i % 9 ? " " : "\n");
  write_text(folder / "in/a.txt", text);
  write_text(folder / "in/b.jsonl", numbered(300));
  PrepareOptions o = folder.options();
  const PrepareReport plain = prepare_corpus(o);
  const auto hash = TokenStore::open(o.output)->train().tokens_hash();
  for (const char* name : {"a.txt", "b.jsonl"}) compress(program, folder / (std::string("in/") + name));
  ASSERT_TRUE(std::filesystem::exists(folder / "in/a.txt" + ending));
  std::filesystem::remove(o.output);
  const PrepareReport packed = prepare_corpus(o);
  EXPECT_EQ(TokenStore::open(o.output)->train().tokens_hash(), hash);
  EXPECT_EQ(packed.bytes, plain.bytes);
  EXPECT_EQ(packed.documents[0], 301u);
}

TEST_P(Packed, DamageIsNamedAndNoOutputStays) {
  const auto [program, ending] = GetParam();
  if (!has_program(program)) GTEST_SKIP() << "no program " << program;
  LinesFolder folder;
  std::string text;
  for (std::int64_t i = 0; i < 300000; ++i) text += str(i * 7919 % 1000003, ' ');
  write_text(folder / "in/a.txt", text);
  compress(program, folder / "in/a.txt");
  const std::string path = folder / "in/a.txt" + ending, whole = read_file(path);
  for (const std::size_t length : {whole.size() - 1, whole.size() / 2, std::size_t{20}}) {
    write_text(path, whole.substr(0, length));
    expect_error([&] { prepare_corpus(folder.options()); }, {path, "cannot be unpacked", "ends early"});
  }
  std::string flipped = whole;
  flipped[whole.size() / 2] = static_cast<char>(flipped[whole.size() / 2] ^ 0x55);
  write_text(path, flipped);
  expect_error([&] { prepare_corpus(folder.options()); }, {path, "cannot be unpacked"});
  EXPECT_FALSE(std::filesystem::exists(folder.options().output));
}

TEST_P(Packed, ContentsOfCompressedFilesAreChecked) {
  const auto [program, ending] = GetParam();
  if (!has_program(program)) GTEST_SKIP() << "no program " << program;
  LinesFolder folder;
  write_text(folder / "in/a.txt", "%PDF-1.4");
  compress(program, folder / "in/a.txt");
  expect_error([&] { list_text_files({folder / "in"}, "*"); }, {"a PDF document"});
  std::filesystem::remove(folder / "in/a.txt" + ending);
  write_text(folder / "in/b.txt", std::string(1000, 'a') + '\0');
  compress(program, folder / "in/b.txt");
  expect_error([&] { prepare_corpus(folder.options()); }, {"its byte 1000 is NUL"});
}

std::string named(const testing::TestParamInfo<std::pair<const char*, const char*>>& info) { return info.param.first; }

INSTANTIATE_TEST_SUITE_P(, Packed, testing::Values(std::pair{"gzip", ".gz"}, std::pair{"zstd", ".zst"}), named);

}  // namespace
}  // namespace ring
