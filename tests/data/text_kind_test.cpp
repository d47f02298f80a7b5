#include "data/text_kind.h"

#include "corpus_case.h"
#include "data/documents.h"
#include "data/prepare.h"
#include "tests/error_of.h"

namespace ring {
namespace {

std::string bytes_of(std::initializer_list<int> values) {
  std::string out;
  for (const int v : values) out += static_cast<char>(v);
  return out;
}

// Returns the first bytes of other formats, by their definitions, and the kind that the error must name.
std::vector<std::pair<std::string, std::string>> foreign_heads() {
  return {
      {bytes_of({0xFD, '7', 'z', 'X', 'Z', 0}), "compressed with xz: unpack it first"},
      {"BZh9" + bytes_of({0x31, 0x41, 0x59, 0x26, 0x53, 0x59}), "compressed with bzip2: unpack it first"},
      {bytes_of({0x04, 0x22, 0x4D, 0x18, 0x64}), "compressed with lz4"},
      {bytes_of({'7', 'z', 0xBC, 0xAF, 0x27, 0x1C}), "a 7z archive"},
      {bytes_of({'P', 'K', 3, 4, 20}), "a zip archive"},
      {bytes_of({'R', 'a', 'r', '!', 0x1A, 7, 1}), "a rar archive"},
      {std::string(257, 'a') + "ustar  ", "a tar archive: unpack it first"},
      {bytes_of({'P', 'A', 'R', '1', 0x15, 4}), "a Parquet table"},
      {bytes_of({'A', 'R', 'R', 'O', 'W', '1', 0, 0}), "an Arrow table"},
      {bytes_of({'O', 'b', 'j', 1, 4}), "an Avro table"},
      {bytes_of({0x89, 'H', 'D', 'F', 0x0D, 0x0A, 0x1A, 0x0A}), "an HDF5 file"},
      {"SQLite format 3" + bytes_of({0, 16}), "an SQLite database"},
      {bytes_of({0x93, 'N', 'U', 'M', 'P', 'Y', 1}), "a NumPy array"},
      {"%PDF-1.7\n", "a PDF document: convert it"},
      {bytes_of({0xD0, 0xCF, 0x11, 0xE0, 0xA1, 0xB1, 0x1A, 0xE1}), "a Microsoft Office document"},
      {bytes_of({0x89, 'P', 'N', 'G', 0x0D, 0x0A, 0x1A, 0x0A}), "a PNG image"},
      {bytes_of({0xFF, 0xD8, 0xFF, 0xE0}), "a JPEG image"},
      {"GIF89a;", "a GIF image"},
      {bytes_of({0x7F, 'E', 'L', 'F', 2}), "a program"},
      {bytes_of({0xFF, 0xFE, 'a', 0}), "text in UTF-16: convert it first: iconv"},
      {bytes_of({0xFE, 0xFF, 0, 'a'}), "text in UTF-16"},
      {bytes_of({0xFF, 0xFE, 0, 0, 'a', 0, 0, 0}), "text in UTF-32"},
      {bytes_of({0, 0, 0xFE, 0xFF, 0, 0, 0, 'a'}), "text in UTF-32"},
      {"almost text" + bytes_of({0}), "binary: it has NUL bytes"},
      {bytes_tokenizer()->serialize(), "a tokenizer"},
  };
}

TEST(TextKind, OtherFormatsAreRefusedWithTheirNameAndTheRemedy) {
  TempFolder folder;
  const std::string path = folder / "in/a.txt";
  for (const auto& [head, said] : foreign_heads()) {
    write_text(path, head + " and so on");
    for (const std::string& input : {path, folder / "in"})
      expect_error([&] { list_text_files({input}, "*.txt"); }, {"a.txt is not text, but " + said, "--as-text"});
    EXPECT_EQ(list_text_files({path}, "*", true).size(), 1u);
  }
  write_corpus(folder / "c.h5", counting(10), {});
  expect_error([&] { list_text_files({folder / "c.h5"}, "*"); }, {"c.h5", "but a corpus"});
}

TEST(TextKind, JsonAsTextIsRefused) {
  TempFolder folder;
  for (const auto& [name, text] : {std::pair{"b.json", "[1]"}, {"a.txt", " {\n \"text\" : \"words\"}\n"}}) {
    write_text(folder / name, text);
    expect_error([&] { list_text_files({folder / name}, "*"); },
                 {std::string(name) + " is not text, but JSON", "--text-field", "--as-text"});
    EXPECT_EQ(list_text_files({folder / name}, "*", false, {.text = "text"}).front().members.text, "text");
    EXPECT_EQ(list_text_files({folder / name}, "*", true).front().members.text, "");
  }
  expect_error([&] { list_text_files({folder.path()}, "*"); }, {"a.txt", "(2 of 2 files", "--glob"});
  expect_error([&] { list_text_files({folder.path()}, "*", true, {.text = "text"}); },
               {"'text'", "--text-field", "--as-text"});
}

TEST(TextKind, CsvAsTextIsRefused) {
  TempFolder folder;
  for (const char* name : {"a.csv", "b.TSV", "c.csv.gz"}) {
    write_text(folder / name, "id,text\n1,\"words\"\n");
    expect_error([&] { list_text_files({folder / name}, "*"); }, {name, "but a table", ".jsonl", "--as-text"});
    EXPECT_EQ(list_text_files({folder / name}, "*", true).size(), 1u) << name;
  }
}

TEST(TextKind, JsonLinesAreRecognizedByTheirName) {
  TempFolder folder;
  for (const char* name : {"a.jsonl", "c.ndjson", "D.JSONL", "e.jsonl.gz"}) {
    write_text(folder / name, "{\"text\": \"words\"}\n");
    EXPECT_EQ(list_text_files({folder / name}, "*").front().members.text, "text") << name;
    EXPECT_EQ(list_text_files({folder / name}, "*", false, {.text = "body"}).front().members.text, "body") << name;
  }
}

// The file holds only the beginning of another format's signature.
TEST(TextKind, TruncatedFilesOfOtherFormatsAreRefused) {
  TempFolder folder;
  const std::vector<std::pair<std::string, std::string>> files{{"a.idx", "MMID"},
                                                               {"b.idx", "TNT"},
                                                               {"c.h5", "ringmaster cor"},
                                                               {"d.zip", "PK"},
                                                               {"e.pdf", "%PD"},
                                                               {"f.7z", "7"},
                                                               {"g.sqlite", "SQLite f"},
                                                               {"h", bytes_of({0x89, 'H', 'D'})},
                                                               {"i.jsonl.gz", bytes_of({0x1F})},
                                                               {"j.zst", bytes_of({0x28, 0xB5})},
                                                               {"k.npy", bytes_of({0x93, 'N'})}};
  for (const auto& [name, text] : files) {
    write_text(folder / name, text);
    expect_error([&] { list_text_files({folder / name}, "*"); }, {name + " is not text", "rest is missing"});
    write_text(folder / "text", text + " is text");
    const bool begins_as_text = text[0] > ' ' && text[0] < 0x7F && name != "j.zst";
    if (begins_as_text) list_text_files({folder / "text"}, "*");  // throws no Error
  }
}

TEST(TextKind, TextIsAccepted) {
  TempFolder folder;
  const std::vector<std::string> texts{"",
                                       "a",
                                       "PK and PAR 1",
                                       "BZh9 is a magic number",
                                       "\xEF\xBB\xBF with a mark",
                                       "{\"a\", 1}\n",
                                       "{\"a",
                                       "{ a: 1 }",
                                       "caf\xE9 in Latin-1",
                                       "\xE6\x97\xA5\xE6\x9C\xAC",
                                       "7z, Rar, GIF"};
  for (const std::string& text : texts) {
    write_text(folder / "a.txt", text);
    EXPECT_EQ(list_text_files({folder / "a.txt"}, "*").size(), 1u) << text;
  }
  write_text(folder / "json", "no ending");
  EXPECT_EQ(list_text_files({folder / "json"}, "*").size(), 1u);
}

TEST(TextKind, MessagesNameOnlyOptionsThatTheCommandHas) {
  TempFolder folder;
  write_text(folder / "in/a.pdf", "%PDF-1.7\n");
  write_text(folder / "in/b.json", "[1]");
  write_text(folder / "c.txt", "almost" + std::string(600, ' ') + bytes_of({0}));
  std::filesystem::create_directory(folder / "empty");
  const auto said = [&](const char* input, FileOptions options) {
    return error_of([&] {
      for (const TextFile& f : list_text_files({folder / input}, "*", false, {}, options)) read_text(f, [](auto) {});
    });
  };
  const auto names = [](const std::string& text, const char* option) { return text.find(option) != std::string::npos; };
  for (const char* input : {"in", "in/a.pdf", "in/b.json", "c.txt", "empty"}) {
    const std::string all = said(input, FileOptions::all);
    EXPECT_EQ(names(all, "--glob"), input != std::string("empty")) << all;
    for (const FileOptions options : {FileOptions::text_field, FileOptions::none}) {
      const std::string some = said(input, options);
      EXPECT_FALSE(names(some, "--glob") || names(some, "--as-text")) << some;
      EXPECT_TRUE(names(some, folder.path().c_str())) << some;
      const bool json = input == std::string("in/b.json");
      EXPECT_EQ(names(some, "--text-field"), json && options == FileOptions::text_field) << some;
      EXPECT_EQ(names(some, "rename it to .jsonl"), json && options == FileOptions::none) << some;
    }
  }
  EXPECT_TRUE(said("in", FileOptions::none).ends_with("give different files"));
}

// Errors about records, also if their text has a different name, mention no option that the command lacks.
TEST(TextKind, MessagesOfRecordsNameOnlyOptionsThatTheCommandHas) {
  TempFolder folder;
  for (const char* record :
       {"{\"body\": \"a\"}", "{\"text\": 5}", "{\"messages\": []}", "{\"prompt\": \"a\", \"completion\": \"b\"}"}) {
    write_text(folder / "a.jsonl", record);
    for (const FileOptions options : {FileOptions::all, FileOptions::text_field, FileOptions::none}) {
      const std::string said = error_of([&] {
        for (const TextFile& f : list_text_files({folder / "a.jsonl"}, "*", false, {}, options))
          read_text(f, [](auto) {});
      });
      const bool none = options == FileOptions::none;
      EXPECT_EQ(said.find("-field") == std::string::npos, none) << said;
      EXPECT_EQ(said.find("Rename the text member") != std::string::npos, none) << said;
    }
  }
}

PrepareOptions options(const TempFolder& folder) {
  PrepareOptions o;
  o.inputs = {folder / "in"};
  o.tokenizer = "bytes";
  o.output = folder / "out.h5";
  o.validation_fraction = 0;
  o.threads = 2;
  return o;
}

TEST(TextKind, ANulFarIntoAFileStopsThePreparationWithoutOutput) {
  TempFolder folder;
  std::string text(3000000, 'a');
  text[2500000] = '\0';
  write_text(folder / "in/a.txt", "fine");
  write_text(folder / "in/b.txt", text);
  PrepareOptions o = options(folder);
  for (const char* tokenizer : {"bytes", "chars"}) {
    o.tokenizer = tokenizer;
    expect_error([&] { prepare_corpus(o); }, {"b.txt is not text", "byte 2500000 is NUL", "--as-text"});
    for (const auto& entry : std::filesystem::directory_iterator(folder.path()))
      EXPECT_EQ(entry.path().filename(), "in");
  }
  o.tokenizer = "bytes";
  o.as_text = true;
  EXPECT_EQ(prepare_corpus(o).bytes, 3000004u);
  std::int32_t token = -1;
  TokenStore::open(o.output)->train().read(5 + 2500000, 1, &token);  // after "fine" and its end-of-text token
  EXPECT_EQ(token, 0);
}

TEST(TextFiles, BrokenLinksAreSkippedWithAWarning) {
  namespace fs = std::filesystem;
  TempFolder folder;
  write_text(folder / "in/a.txt", "text");
  write_text(folder / "other/b.txt", "text");
  fs::create_symlink("loop.txt", folder / "in/loop.txt");
  fs::create_symlink("pong", folder / "in/ping");
  fs::create_symlink("ping", folder / "in/pong");
  fs::create_directory_symlink("..", folder / "in/up");
  fs::create_symlink("nothing.txt", folder / "in/dangling.txt");
  fs::create_symlink(folder / "other/b.txt", folder / "in/linked.txt");
  testing::internal::CaptureStderr();
  const auto files = list_text_files({folder / "in"}, "*.txt");
  const std::string said = testing::internal::GetCapturedStderr();
  ASSERT_EQ(files.size(), 2u);
  EXPECT_EQ(files[0].name, "a.txt");
  EXPECT_EQ(files[1].name, "linked.txt");
  for (const char* part : {"skipped", "in/loop.txt: Too many", "in/ping: Too many", "in/pong",
                           "in/up: a link to a folder", "in/dangling.txt: No such file"})
    EXPECT_NE(said.find(part), std::string::npos) << part << " is not in: " << said;
  expect_error([&] { list_text_files({folder / "in/loop.txt"}, "*"); }, {"input ", "loop.txt", "Too many levels"});
}

}  // namespace
}  // namespace ring
