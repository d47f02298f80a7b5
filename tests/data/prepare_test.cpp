#include "data/prepare.h"
#include "data/documents.h"

#include <algorithm>
#include <cmath>
#include <set>

#include "core/files.h"
#include "corpus_case.h"
#include "data/text_survey.h"
#include "text/utf8.h"

namespace ring {
namespace {

class CollectedTexts : public DocumentSink {
 public:
  void add_part(std::string_view text, bool) override {
    EXPECT_FALSE(text.empty());
    current_ += text;
  }
  void end() override { documents.push_back(std::exchange(current_, "")); }
  std::vector<std::string> documents;

 private:
  std::string current_;
};

std::vector<std::string> split_text(const std::string& rule, const std::string& text, std::size_t block) {
  CollectedTexts collected;
  DocumentCutter cutter(parse_document_rule(rule), collected);
  for (std::size_t i = 0; i < text.size(); i += block) cutter.add_block(std::string_view(text).substr(i, block));
  cutter.on_end_of_file();
  return collected.documents;
}

TEST(DocumentCutter, EveryRuleGivesTheSameForEveryBlockSize) {
  using Documents = std::vector<std::string>;
  for (std::size_t block : {1, 2, 3, 5, 100}) {
    EXPECT_EQ(split_text("file", "a\n\nb", block), (Documents{"a\n\nb"}));
    EXPECT_EQ(split_text("file", "", block), Documents{});
    EXPECT_EQ(split_text("line", "one\n\ntwo\nthree", block), (Documents{"one", "two", "three"}));
    EXPECT_EQ(split_text("blank-line", "\n\na\nb\n\n\n\nc\r\n\r\nd\n", block), (Documents{"a\nb\n", "c\r\n", "d\n"}));
    EXPECT_EQ(split_text("blank-line", "a\rb\n \nc", block), (Documents{"a\rb\n \nc"}));
    EXPECT_EQ(split_text("blank-line", "a\n\r", block), (Documents{"a\n"}));  // a line may end with "\r" alone
    EXPECT_EQ(split_text("<|end|>", "one<|end|><|end|>two<|en<|end|>three<|end", block),
              (Documents{"one", "two<|en", "three<|end"}));
    EXPECT_EQ(split_text("\\n---\\n", "a\n---\nb\n--\n---\n", block), (Documents{"a", "b\n--"}));
  }
  EXPECT_EQ(parse_document_rule("a\\\\n\\t\\x").separator, "a\\n\t\\x");
  expect_error([] { parse_document_rule(""); }, {"--document is empty", "blank-line"});
}

TEST(TextFiles, AreFoundSortedAndOnce) {
  TempFolder folder;
  for (const char* name : {"b.txt", "a.txt", "sub/c.txt", "sub/d.md", ".hidden/e.txt", ".f.txt"})
    write_text(folder / name, name);
  const auto names = [&](const std::vector<std::string>& inputs, const std::string& glob) {
    std::vector<std::string> out;
    for (const TextFile& f : list_text_files(inputs, glob)) {
      EXPECT_EQ(f.size, std::filesystem::file_size(f.path));
      out.push_back(f.name);
    }
    return out;
  };
  using Names = std::vector<std::string>;
  EXPECT_EQ(names({folder.path()}, "*.txt"), (Names{"a.txt", "b.txt", "sub/c.txt"}));
  EXPECT_EQ(names({folder.path() + "/"}, "sub/*"), (Names{"sub/c.txt", "sub/d.md"}));
  EXPECT_EQ(names({folder.path(), folder / "a.txt", folder / "sub/d.md"}, "*.txt"),
            (Names{"a.txt", "b.txt", "d.md", "sub/c.txt"}));
}

TEST(TextFiles, ErrorsNameTheInput) {
  TempFolder folder;
  write_text(folder / "a.md", "x");
  expect_error([] { list_text_files({}, "*"); }, {"no input", "--input"});
  expect_error([&] { list_text_files({folder / "none"}, "*"); }, {"input ", "none", "no such file or folder"});
  expect_error([&] { list_text_files({folder.path()}, "*.txt"); },
               {folder.path(), "none of its 1 file ", "--glob '*.txt'"});
  expect_error([] { list_text_files({"/dev/null"}, "*"); }, {"/dev/null", "not a regular file"});
}

struct Folder : TempFolder {
  PrepareOptions options(const std::string& tokenizer = "bytes") {
    PrepareOptions o;
    o.inputs = {*this / "in"};
    o.tokenizer = tokenizer;
    o.output = *this / "out.h5";
    o.threads = 2;
    return o;
  }
};

std::string text_of(const TokenStore& store, const TokenSplit& split) {
  std::vector<std::int32_t> ids(split.tokens());
  split.read(0, ids.size(), ids.data());
  return store.tokenizer()->decode(ids);
}

std::vector<std::string> documents_of(const TokenStore& store, const TokenSplit& split) {
  std::vector<std::string> out;
  for (std::uint64_t d = 0; d < split.documents(); ++d) {
    std::vector<std::int32_t> ids(split.document_start(d + 1) - split.document_start(d));
    split.read(split.document_start(d), ids.size(), ids.data());
    out.push_back(store.tokenizer()->decode(ids));
  }
  return out;
}

std::string random_text(std::size_t bytes, unsigned seed) {
  std::string text;
  std::uint32_t x = seed * 2654435761u + 1;
  while (text.size() < bytes) {
    x = x * 1664525u + 1013904223u;
    text += "abcdefgh \n"[(x >> 16) % 10];
    if ((x >> 20) % 97 == 0) text += "\xC3\xA9";
  }
  return text;
}

TEST(Prepare, DocumentsAreFilesWithEndOfText) {
  Folder folder;
  write_text(folder / "in/b.txt", "second");
  write_text(folder / "in/a.txt", "first");
  write_text(folder / "in/empty.txt", "");
  PrepareOptions o = folder.options();
  o.validation_fraction = 0;
  const PrepareReport report = prepare_corpus(o);
  EXPECT_EQ(report.files, 3u);
  EXPECT_EQ(report.bytes, 11u);
  EXPECT_EQ(report.tokens[0], 13u);
  const auto store = TokenStore::open(o.output);
  EXPECT_EQ(documents_of(*store, store->train()), (std::vector<std::string>{"first", "second"}));
  EXPECT_EQ(store->train().text_bytes(), 11u);
  EXPECT_EQ(store->validation().tokens(), 0u);
  std::int32_t token = 0;
  store->train().read(5, 1, &token);
  EXPECT_EQ(token, 256);
}

TEST(Prepare, TailSplitCountsCharacters) {
  Folder folder;
  const std::string text = random_text(10007, 1);
  write_text(folder / "in/text.txt", text);
  PrepareOptions o = folder.options("chars");
  o.validation_fraction = 0.1;
  prepare_corpus(o);
  const auto store = TokenStore::open(o.output);
  const std::int64_t characters = utf8::count_characters(text);
  EXPECT_EQ(store->train().tokens(), static_cast<std::uint64_t>(static_cast<double>(characters) * 0.9));
  EXPECT_EQ(store->train().tokens() + store->validation().tokens(), static_cast<std::uint64_t>(characters));
  EXPECT_TRUE(text_of(*store, store->train()) + text_of(*store, store->validation()) == text);
  EXPECT_EQ(store->vocab_size(), 11);
}

TEST(Prepare, TailSplitMayCrossSeveralFiles) {
  Folder folder;
  write_text(folder / "in/a", std::string(60, 'a'));
  write_text(folder / "in/b", std::string(30, 'b'));
  write_text(folder / "in/c", std::string(10, 'c'));
  PrepareOptions o = folder.options();
  o.split = "tail";
  o.validation_fraction = 0.25;
  prepare_corpus(o);
  auto store = TokenStore::open(o.output);
  EXPECT_EQ(documents_of(*store, store->train()),
            (std::vector<std::string>{std::string(60, 'a'), std::string(15, 'b')}));
  EXPECT_EQ(documents_of(*store, store->validation()),
            (std::vector<std::string>{std::string(15, 'b'), std::string(10, 'c')}));
  EXPECT_EQ(store->train().tokens(), 76u) << "the cut document gets no end-of-text token where it is cut";
  o.validation_fraction = 0.1;  // splits between two files
  prepare_corpus(o);
  store = TokenStore::open(o.output);
  EXPECT_EQ(documents_of(*store, store->validation()), (std::vector<std::string>{std::string(10, 'c')}));
}

TEST(Prepare, AutoTakesTheEndOfEachFile) {
  Folder folder;
  write_text(folder / "in/a", std::string(60, 'a'));
  write_text(folder / "in/b", std::string(20, 'b'));
  write_text(folder / "in/c", "");
  PrepareOptions o = folder.options();
  o.validation_fraction = 0.1;
  prepare_corpus(o);
  const auto store = TokenStore::open(o.output);
  EXPECT_EQ(documents_of(*store, store->train()),
            (std::vector<std::string>{std::string(54, 'a'), std::string(18, 'b')}));
  EXPECT_EQ(documents_of(*store, store->validation()),
            (std::vector<std::string>{std::string(6, 'a'), std::string(2, 'b')}));
}

// The default is 250 kB of an input of a few MB, at most a tenth and at least a hundredth of it.
TEST(Prepare, SmallInputsKeepALargerShareForValidation) {
  for (const auto& [bytes, validation] : {std::pair(100'000, 10'000), {5'000'000, 250'000}, {40'000'000, 400'000}}) {
    Folder folder;
    write_text(folder / "in/a", std::string(static_cast<std::size_t>(bytes), 'a'));
    PrepareOptions o = folder.options();
    o.tokenizer = "bytes";
    o.enlarge_validation = true;
    prepare_corpus(o);
    const auto store = TokenStore::open(o.output);
    EXPECT_NEAR(static_cast<double>(store->validation().tokens()), validation, 2) << bytes;
  }
}

TEST(Prepare, HashSplitKeepsDocumentsWholeAndIsStable) {
  Folder folder;
  std::set<std::string> all;
  for (int i = 0; i < 400; ++i) {
    const std::string text = "document " + std::to_string(i);
    write_text(folder / ("in/" + std::to_string(i) + ".txt"), text);
    all.insert(text);
  }
  PrepareOptions o = folder.options();
  o.validation_fraction = 0.2;
  prepare_corpus(o);
  auto store = TokenStore::open(o.output);
  auto train = documents_of(*store, store->train()), validation = documents_of(*store, store->validation());
  EXPECT_NEAR(static_cast<double>(validation.size()), 80, 32);  // four standard deviations
  std::set<std::string> got(train.begin(), train.end());
  got.insert(validation.begin(), validation.end());
  EXPECT_EQ(got, all);
  for (int i = 400; i < 500; ++i) write_text(folder / ("in/" + std::to_string(i) + ".txt"), "new");
  prepare_corpus(o);
  store = TokenStore::open(o.output);
  auto later = documents_of(*store, store->validation());
  std::erase(later, "new");
  EXPECT_EQ(later, validation);
}

TEST(Prepare, TheThreadCountChangesNothing) {
  Folder folder;
  for (int i = 0; i < 20; ++i)
    write_text(folder / ("in/" + std::to_string(i)), random_text(1000, static_cast<unsigned>(i)));
  write_text(folder / "in/large", random_text(5000000, 99));
  for (int threads : {1, 2, 5}) {
    for (const char* document : {"file", "line"}) {
      PrepareOptions o = folder.options();
      o.threads = threads;
      o.document = document;
      o.validation_fraction = 0.3;
      o.output = folder / (std::string(document) + std::to_string(threads) + ".h5");
      prepare_corpus(o);
      EXPECT_TRUE(read_file(o.output) == read_file(folder / (std::string(document) + "1.h5")))
          << threads << " threads, documents: " << document;
    }
  }
}

TEST(Prepare, LongDocumentsAreReadBackWhole) {
  Folder folder;
  const std::string text = random_text(3000000, 5);
  write_text(folder / "in/text", text);
  for (const char* tokenizer : {"bytes", "chars"}) {
    PrepareOptions o = folder.options(tokenizer);
    o.validation_fraction = 0;
    prepare_corpus(o);
    const auto store = TokenStore::open(o.output);
    EXPECT_EQ(store->train().documents(), 1u);
    EXPECT_TRUE(text_of(*store, store->train()) == text);
    EXPECT_EQ(store->train().text_bytes(), text.size());
  }
}

TEST(Prepare, InvalidBytesAreCountedAndTheirFileNamed) {
  Folder folder;
  write_text(folder / "in/a.txt", "fine");
  write_text(folder / "in/b.txt", "bad \xFF\xFE bytes");
  write_text(folder / "in/c.txt", "bad \xFF");
  PrepareOptions o = folder.options("chars");
  o.validation_fraction = 0;
  const PrepareReport report = prepare_corpus(o);
  EXPECT_EQ(report.encode.invalid_bytes, 3);
  EXPECT_EQ(report.first_bad_file, folder / "in/b.txt");
  const auto store = TokenStore::open(o.output);
  EXPECT_EQ(documents_of(*store, store->train())[2], "bad \xEF\xBF\xBD");
  o.tokenizer = "bytes";
  const PrepareReport bytes = prepare_corpus(o);
  EXPECT_EQ(bytes.encode.invalid_bytes, 0);
}

TEST(Prepare, ProgressReachesTheEnd) {
  Folder folder;
  write_text(folder / "in/text", random_text(3000000, 5));
  PrepareProgress last;
  prepare_corpus(folder.options(), [&](const PrepareProgress& p) {
    EXPECT_GT(p.bytes, last.bytes);
    last = p;
  });
  EXPECT_EQ(last.bytes, last.total_bytes);
  expect_error([&] { prepare_corpus(folder.options(), [](const PrepareProgress&) { fail("stopped by the caller"); }); },
               {"stopped by the caller"});
}

TEST(Prepare, BadInputIsRefused) {
  Folder folder;
  PrepareOptions o = folder.options();
  expect_error([&] { prepare_corpus(o); }, {"input ", "/in", "no such file or folder"});
  write_text(folder / "in/empty.txt", "");
  expect_error([&] { prepare_corpus(o); }, {"the input is empty: ", "empty.txt has 0 bytes"});
  write_text(folder / "in/a.txt", "text");
  const auto with = [&](auto&& change, const std::vector<std::string>& parts) {
    PrepareOptions changed = o;
    change(changed);
    expect_error([&] { prepare_corpus(changed); }, parts);
    EXPECT_FALSE(std::filesystem::exists(o.output));
  };
  with([](auto& p) { p.tokenizer = "none.rmt"; }, {"tokenizer 'none.rmt'", "No such file"});
  with([](auto& p) { p.split = "random"; }, {"--split random", "auto, hash or tail"});
  with([](auto& p) { p.validation_fraction = 1; }, {"--validation-fraction 1", "below 1"});
  with([](auto& p) { p.validation_fraction = std::nan(""); }, {"--validation-fraction nan"});
  with([](auto& p) { p.threads = -1; }, {"--threads -1"});
  with([](auto& p) { p.document = ""; }, {"--document is empty"});
  with([](auto& p) { p.tokenizer = "chars", p.document = "line"; },
       {"--document line", "chars", "no end-of-text", "--end-of-text"});
  with([](auto& p) { p.split = "hash", p.validation_fraction = 1e-9; },
       {"validation split", "is empty", "of 1 document, none", "--split tail"});
  with([](auto& p) { p.split = "hash", p.validation_fraction = 1 - 1e-9; }, {"training split", "is empty"});
  with([&](auto& p) { p.output = folder / "no/out.h5"; }, {"no/out.h5", "does not exist"});
}

TEST(Survey, CountsCharactersAcrossBlocks) {
  TempFolder folder;
  std::string text(1048575, 'a');  // the next character crosses the border of two 1 MiB blocks
  text += "\xF0\x9F\x98\x80z\xFF";
  write_text(folder / "t", text);
  const auto files = list_text_files({folder / "t"}, "*");
  const CharacterCount count = count_characters(files);
  EXPECT_EQ(count.characters, "az\xEF\xBF\xBD\xF0\x9F\x98\x80");
  EXPECT_EQ(count.per_file[0], 1048575u + 3);
  EXPECT_EQ(offset_of_character(files[0], 1048575), 1048575u);
  EXPECT_EQ(offset_of_character(files[0], 1048576), 1048579u);
  EXPECT_EQ(offset_of_character(files[0], 99999999), text.size());
}

TEST(Survey, TheSampleIsEvenAndHasTheRequestedSize) {
  TempFolder folder;
  write_text(folder / "in/a", random_text(3000000, 1));
  write_text(folder / "in/b", random_text(1000000, 2));
  const auto files = list_text_files({folder / "in"}, "*");
  std::string all;
  sample_text(files, 1 << 30, [&](std::string_view t) { all += t; });
  EXPECT_TRUE(all == read_file(folder / "in/a") + read_file(folder / "in/b"));
  std::uint64_t bytes = 0;
  sample_text(files, 400000, [&](std::string_view t) { bytes += t.size(); });
  EXPECT_NEAR(static_cast<double>(bytes), 400000, 40000);
  write_text(folder / "e/x", "");
  expect_error([&] { sample_text(list_text_files({folder / "e"}, "*"), 100, [](std::string_view) {}); },
               {"the input is empty", "x"});
}

}  // namespace
}  // namespace ring
