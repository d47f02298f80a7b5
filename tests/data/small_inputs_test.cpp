// Small inputs whose text differs from their bytes: several compressed members, line ends of other systems, byte order
// marks, several names for one file, or tokens that the text already contains.

#include <gtest/gtest.h>

#include <filesystem>
#include <nlohmann/json.hpp>

#include "core/text_file.h"
#include "data/documents.h"
#include "data/glob.h"
#include "data/prepare.h"
#include "data/text_survey.h"
#include "data/token_store.h"
#include "data/unpack.h"
#include "tests/data/corpus_case.h"
#include "tests/error_of.h"

namespace ring {
namespace {

namespace fs = std::filesystem;
using Names = std::vector<std::string>;
using Documents = std::vector<std::string>;
using Json = nlohmann::ordered_json;

struct InputFolder : TempFolder {
  PrepareOptions options(const std::string& input = "in") {
    PrepareOptions o;
    o.inputs = {*this / input};
    o.tokenizer = "bytes";
    o.output = *this / "out.h5";
    o.validation_fraction = 0;
    o.threads = 1;
    return o;
  }
  Names names(const std::string& glob) {
    Names out;
    for (const TextFile& f : list_text_files({*this / "in"}, glob)) out.push_back(f.name);
    return out;
  }
};

std::vector<std::int32_t> tokens_of(const TokenSplit& split) {
  std::vector<std::int32_t> tokens(split.tokens());
  split.read(0, tokens.size(), tokens.data());
  return tokens;
}

// Prepares the corpus and returns its documents. The tokenizer must be `bytes`.
Documents documents(const PrepareOptions& o) {
  fs::remove(o.output);
  prepare_corpus(o);
  Documents all(1);
  const auto store = TokenStore::open(o.output);
  for (const std::int32_t t : tokens_of(store->train()))
    if (t == 256)
      all.emplace_back();
    else
      all.back() += static_cast<char>(t);
  all.pop_back();
  return all;
}

// Compresses as gzip (RFC 1952) with stored blocks (RFC 1951).
std::string gzip(std::string_view text) {
  const auto little = [](std::uint32_t value, int bytes) {
    std::string out;
    for (int i = 0; i < bytes; ++i) out += static_cast<char>(value >> 8 * i & 0xFF);
    return out;
  };
  std::uint32_t crc = ~0u;
  for (const char c : text) {
    crc ^= static_cast<unsigned char>(c);
    for (int bit = 0; bit < 8; ++bit) crc = crc >> 1 ^ (crc & 1 ? 0xEDB88320u : 0);
  }
  const auto size = static_cast<std::uint32_t>(text.size());
  std::string out("\x1F\x8B\x08\0\0\0\0\0\0\xFF", 10);
  do {
    const auto block = static_cast<std::uint32_t>(std::min<std::size_t>(text.size(), 0xFFFF));
    out += little(block == text.size(), 1) + little(block, 2) + little(~block, 2);
    out += text.substr(0, block);
    text.remove_prefix(block);
  } while (!text.empty());
  return out + little(~crc, 4) + little(size, 4);
}

std::string unpacked(const std::string& path) {
  std::string text;
  read_unpacked(path, [&](std::string_view block) {
    text += block;
    return true;
  });
  return text;
}

// The advice in the error for an empty split works for the given files.
TEST(EmptySplit, AdviceWorksForTheFiles) {
  InputFolder folder;
  std::string lines, records;
  for (int i = 0; i < 400; ++i) {
    lines += "line " + std::to_string(i) + "\n";
    records += R"({"text": "record )" + std::to_string(i) + "\"}\n";
  }
  PrepareOptions o = folder.options("in/a.txt.gz");
  o.validation_fraction = 0.1;
  write_text(folder / "in/a.txt.gz", gzip(lines));
  expect_error([&] { prepare_corpus(o); },
               {"validation split", "is empty", "--document line", "unpack the files", "--split tail"});
  o.document = "line";
  EXPECT_GT(prepare_corpus(o).documents[1], 0u);
  o = folder.options("in/b.jsonl");
  o.validation_fraction = 1e-9;
  write_text(folder / "in/b.jsonl", records);
  const std::string error = error_of([&] { prepare_corpus(o); });
  EXPECT_NE(error.find("separate records (--validation-input)"), std::string::npos) << error;
  EXPECT_EQ(error.find("tail"), std::string::npos) << error;
}

// Python's gzip.decompress() gives the same text for the same bytes, or fails.
TEST(GzipMembers, AreAllReadOrRefused) {
  TempFolder folder;
  const std::string a = gzip("one\n"), b = gzip("two\n"), path = folder / "a.gz";
  const auto read = [&](const std::string& bytes) {
    write_text(path, bytes);
    return unpacked(path);
  };
  EXPECT_EQ(read(a + b), "one\ntwo\n");
  EXPECT_EQ(read(a + std::string(512, '\0')), "one\n");
  EXPECT_EQ(read(a + std::string(3, '\0') + b + gzip("")), "one\ntwo\n");
  const std::string large(3 << 20, 'x');  // text blocks that end when no input is left
  EXPECT_EQ(read(gzip(large)), large);
  std::string flipped = a + b;
  flipped[a.size() + 1] ^= 1;  // the signature of the second member
  const auto refused = [&](const std::string& bytes, const std::string& why) {
    expect_error([&] { read(bytes); }, {path, "cannot be unpacked", why});
  };
  refused(flipped, "incorrect header");
  refused(a + b.substr(0, 1), "ends early");
  refused(a + b.substr(0, 5), "ends early");
  refused(a + b.substr(0, b.size() - 3), "ends early");
  refused(a + "more text", "incorrect header");
  refused(a + std::string(9, '\0') + "xy", "incorrect header");
}

#ifdef RING_WITH_ZSTD
// Compresses as a zstd frame (RFC 8878) with one raw block.
std::string zstd_frame(std::string_view text) {
  const auto size = static_cast<std::uint32_t>(text.size());
  const std::uint32_t block = size << 3 | 1;  // raw, and the last block
  std::string out("\x28\xB5\x2F\xFD\x20", 5);
  out += static_cast<char>(size);
  for (int i = 0; i < 3; ++i) out += static_cast<char>(block >> 8 * i & 0xFF);
  return out.append(text);
}

// pzstd writes skippable frames before the others. zstd -d gives the same texts, or fails.
TEST(ZstdFrames, AreAllReadOrRefused) {
  TempFolder folder;
  const std::string path = folder / "a.zst", skipped("\x5C\x2A\x4D\x18\x04\0\0\0abcd", 12);
  const auto read = [&](const std::string& bytes) {
    write_text(path, bytes);
    return unpacked(path);
  };
  const std::string a = zstd_frame("one\n"), b = zstd_frame("two\n");
  EXPECT_EQ(read(a + b), "one\ntwo\n");
  EXPECT_EQ(read(skipped + a + skipped + b), "one\ntwo\n");
  EXPECT_EQ(read(a + skipped), "one\n");
  for (const std::string& bytes : {a + b.substr(0, 3), a + b.substr(0, b.size() - 1), a + skipped.substr(0, 9)})
    expect_error([&] { read(bytes); }, {path, "cannot be unpacked", "ends early"});
  expect_error([&] { read(a + "more text"); }, {path, "cannot be unpacked"});
  // The window is that of `zstd --long=28`, 2^(10 + 18) bytes, which the library refuses by default.
  EXPECT_EQ(read(std::string("\x28\xB5\x2F\xFD\x00\x90\x21\x00\x00one\n", 13)), "one\n");
}
#endif

// Line ends are Python's universal newlines: "
// ", "\r
// " and "\r".
TEST(LineEnds, AllLineEndsAreRecognized) {
  InputFolder folder;
  PrepareOptions o = folder.options();
  o.document = "line";
  for (const char* text : {"a\nb\n\nc\n", "a\r\nb\r\n\r\nc\r\n", "a\rb\r\rc\r", "a\r\nb\n\rc"}) {
    write_text(folder / "in/a.txt", text);
    EXPECT_EQ(documents(o), (Documents{"a", "b", "c"})) << Json(text);
  }
  o.document = "blank-line";
  for (const std::string end : {"\n", "\r\n", "\r"}) {
    write_text(folder / "in/a.txt", "a" + end + "b" + end + end + end + "c" + end + end);
    EXPECT_EQ(documents(o), (Documents{"a" + end + "b" + end, "c" + end})) << Json(end);
  }
  o.document = "\\n---\\n";
  for (const std::string end : {"\n", "\r\n"}) {
    write_text(folder / "in/a.txt", "a" + end + "---" + end + "b-" + end + "--" + end + "---x" + end);
    EXPECT_EQ(documents(o), (Documents{"a", "b-" + end + "--" + end + "---x" + end})) << Json(end);
  }
}

TEST(ByteOrderMark, IsNotPartOfAText) {
  InputFolder folder;
  const std::string mark = "\xEF\xBB\xBF";
  write_text(folder / "in/a.txt", mark + "one");
  write_text(folder / "in/b.txt", mark);
  write_text(folder / "in/c.txt", "in" + mark + "side");
  write_text(folder / "in/d.jsonl", mark + R"({"text": ")" + mark + "two\"}\n" + mark + R"({"text": "three"})");
  PrepareOptions o = folder.options();
  EXPECT_EQ(documents(o), (Documents{"one", "in" + mark + "side", "two", "three"}));
  EXPECT_EQ(count_characters(list_text_files({folder / "in/a.txt"}, "*")).characters, "eno");
  std::string sample;
  sample_text(list_text_files({folder / "in/d.jsonl"}, "*"), 100, [&](std::string_view text) { sample += text; });
  EXPECT_EQ(sample, "two\nthree\n");
  o.inputs = {folder / "in/a.txt"};
  o.as_text = true;
  EXPECT_EQ(documents(o), Documents{mark + "one"}) << "all bytes as they are";
  o = folder.options("lines.txt");
  o.document = "line";
  write_text(folder / "lines.txt", mark + "one\r\n" + mark + "two\n" + mark + "\n");  // like concatenated files
  EXPECT_EQ(documents(o), (Documents{"one", "two"}));
}

// `cat` of files with marks produces several marks, and so do editors that add a mark to a file that has one.
TEST(ByteOrderMark, SeveralMarksAreNotPartOfAText) {
  InputFolder folder;
  const std::string mark = "\xEF\xBB\xBF";
  write_text(folder / "in/a.txt", mark + mark + mark + "one");
  write_text(folder / "in/b.txt", mark + mark);
  write_text(folder / "in/c.txt", mark + mark + mark.substr(0, 2));  // an incomplete mark is kept as it is
  write_text(folder / "in/d.jsonl", mark + mark + R"({"text": ")" + mark + mark + "two\"}\n");
  PrepareOptions o = folder.options();
  EXPECT_EQ(documents(o), (Documents{"one", mark.substr(0, 2), "two"}));
  EXPECT_EQ(count_characters(list_text_files({folder / "in/a.txt"}, "*")).characters, "eno");
  write_text(folder / "settings.yaml", mark + mark + "model: {width: 64}");
  EXPECT_EQ(read_text_file(folder / "settings.yaml", 100), "model: {width: 64}");
  std::string bytewise;
  struct Sink final : DocumentSink {
    explicit Sink(std::string& all) : text(all) {}
    void add_part(std::string_view t, bool) override { text += t; }
    void end() override { text += '|'; }
    std::string& text;
  } all(bytewise);
  DocumentCutter cutter({DocumentKind::line, "\n"}, all);
  for (const char c : mark + mark + "one\n" + mark + mark + "\n" + mark + "two" + mark) cutter.add_block({&c, 1});
  cutter.on_end_of_file();
  EXPECT_EQ(bytewise, "one|two" + mark + "|");
}

TEST(ByteOrderMark, IsNotCountedAsText) {
  InputFolder folder;
  write_text(folder / "in/a.txt",
             "\xEF\xBB\xBF"
             "one");
  EXPECT_EQ(prepare_corpus(folder.options()).bytes, 3u);
}

TEST(ByteOrderMark, IsNotPartOfTokenizersAndTemplates) {
  InputFolder folder;
  const std::string mark = "\xEF\xBB\xBF";
  write_text(folder / "t.jinja", mark +
                                     "{% for m in messages %}{% generation %}{{ m.content }}{% endgeneration %}"
                                     "{% endfor %}");
  write_text(folder / "in/a.jsonl", R"({"messages": [{"role": "assistant", "content": "x"}]})");
  PrepareOptions o = folder.options();
  o.members.messages = "messages";
  o.chat_template = folder / "t.jinja";
  prepare_corpus(o);
  EXPECT_EQ(tokens_of(TokenStore::open(o.output)->train()), (std::vector<std::int32_t>{'x'}));
}

// Expected values are the results of bash with LC_ALL=C.UTF-8.
TEST(Glob, AQuestionMarkAndBracketsMatchCharacters) {
  EXPECT_TRUE(glob_matches("?.txt", "\xC3\xA9.txt"));
  EXPECT_FALSE(glob_matches("??.txt", "\xC3\xA9.txt"));
  EXPECT_TRUE(glob_matches("[\xC3\xA9]*.txt", "\xC3\xA9.txt"));
  EXPECT_FALSE(glob_matches("[\xC3\xA9]*.txt", "\xC3\xA8.txt"));
  EXPECT_TRUE(glob_matches("[!\xC3\xA9]*.txt", "\xC3\xA8.txt"));
  EXPECT_FALSE(glob_matches("[!\xC3\xA9]*.txt", "\xC3\xA9.txt"));
  EXPECT_TRUE(glob_matches("\xF0\x9F\x98\x80?/[\xD0\xB0-\xD1\x8F].md",
                           "\xF0\x9F\x98\x80"
                           "1/\xD0\xB6.md"));
  EXPECT_TRUE(glob_matches("*?.txt", "caf\xE9.txt"));  // not UTF-8
  for (const char* pattern : {"a\\*", "[[:alpha:]]\\*", "[]a]*", "[a-c][*]", "[!]b]?", "[^x-z]*\\*", "a**"})
    EXPECT_TRUE(glob_matches(pattern, "a*")) << pattern;
  for (const char* pattern : {"a", "a*b", "[!a]*", "[]", "a?*?", "[b-z]*", "[[:digit:]]*"})
    EXPECT_FALSE(glob_matches(pattern, "a*")) << pattern;
  EXPECT_TRUE(glob_matches("[a", "[a"));
}

// Expected values are the results of bash with globstar, and of pathlib.Path.glob().
TEST(Glob, OneStarStaysInAFolderAndTwoCrossFolders) {
  const Names all{"deep/a/b/d.txt", "deep/c.txt", "top.txt"};
  const auto chosen = [&](const std::string& glob) {
    Names out;
    for (const std::string& name : all)
      if (glob_matches(glob, name)) out.push_back(name);
    return out;
  };
  EXPECT_EQ(chosen("*.txt"), all);
  EXPECT_EQ(chosen("**"), all);
  EXPECT_EQ(chosen("**/*.txt"), all);
  EXPECT_EQ(chosen("./**/**/*.txt"), all);
  EXPECT_EQ(chosen("./*.txt"), Names{"top.txt"});
  EXPECT_EQ(chosen("*/*.txt"), Names{"deep/c.txt"});
  EXPECT_EQ(chosen("deep/**"), (Names{"deep/a/b/d.txt", "deep/c.txt"}));
  EXPECT_EQ(chosen("deep/**/?.txt"), (Names{"deep/a/b/d.txt", "deep/c.txt"}));
  EXPECT_EQ(chosen("**/b/*"), Names{"deep/a/b/d.txt"});
  EXPECT_EQ(chosen("**/[ab]/**/d.*"), Names{"deep/a/b/d.txt"});
  EXPECT_EQ(chosen("top.txt/**"), Names{});
  EXPECT_EQ(chosen("d*t"), Names{"deep/a/b/d.txt"}) << "without '/' only the name counts";
  EXPECT_EQ(chosen("deep/a*"), Names{});
}

// The layout is that of Hugging Face's cache of data sets: blobs named by hash, and links with the files' names.
TEST(SameFile, IsReadOnceUnderOneName) {
  InputFolder folder;
  for (const char* blob : {"0a1f", "92c3"}) write_text(folder / (std::string("in/blobs/") + blob), blob);
  fs::create_directories(folder / "in/snapshots/r");
  fs::create_symlink("../../blobs/0a1f", folder / "in/snapshots/r/part-0.txt");
  fs::create_symlink("../../blobs/92c3", folder / "in/snapshots/r/part-1.txt");
  fs::create_hard_link(folder / "in/blobs/92c3", folder / "in/snapshots/r/z.txt");
  testing::internal::CaptureStderr();
  EXPECT_EQ(folder.names("*"), (Names{"snapshots/r/part-0.txt", "snapshots/r/part-1.txt"}));
  const std::string said = testing::internal::GetCapturedStderr();
  EXPECT_NE(said.find("2 files once each"), std::string::npos) << said;
  EXPECT_NE(said.find("5 names"), std::string::npos) << said;
  testing::internal::CaptureStderr();
  const std::string once = folder / "in/blobs/92c3";
  EXPECT_EQ(list_text_files({once, once}, "*").size(), 1u);
  const std::string twice = testing::internal::GetCapturedStderr();
  EXPECT_NE(twice.find("2 names lead to them: " + once + " is given twice"), std::string::npos) << twice;
  write_text(folder / "other/a.txt", "other");
  fs::create_hard_link(folder / "in/blobs/0a1f", folder / "other/b.txt");
  PrepareOptions o = folder.options();
  o.inputs.push_back(folder / "other");
  EXPECT_EQ(documents(o), (Documents{"other", "0a1f", "92c3"}));
  o = folder.options();
  o.validation_inputs = {folder / "other"};
  expect_error([&] { prepare_corpus(o); }, {"other/b.txt is also in --input"});
}

TEST(HiddenFiles, AreCountedAndNamed) {
  InputFolder folder;
  write_text(folder / "in/.cache/deep/a.txt", "a");
  write_text(folder / "in/.cache/b.txt", "b");
  expect_error([&] { folder.names("*"); },
               {"2 files are left out", "begin with a dot", "name " + (folder / "in/.cache")});
  EXPECT_EQ(list_text_files({folder / "in/.cache"}, "*").size(), 2u) << "the way that the message names";
  write_text(folder / "in/c.txt", "c");
  testing::internal::CaptureStderr();
  EXPECT_EQ(folder.names("*"), Names{"c.txt"});
  EXPECT_NE(testing::internal::GetCapturedStderr().find("2 files are left out"), std::string::npos);
}

}  // namespace
}  // namespace ring
