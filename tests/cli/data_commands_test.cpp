#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>

#include "cli/command.h"
#include "cli/commands.h"
#include "cli/data_text.h"
#include "core/check.h"
#include "core/files.h"
#include "text/tokenizer.h"

namespace ring {
namespace {

struct Outcome {
  std::string out, error;
};

class DataCommands : public testing::Test {
 protected:
  void SetUp() override { std::filesystem::create_directories(folder_); }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  std::string path(const std::string& name) const { return (folder_ / name).string(); }
  void write(const std::string& name, const std::string& text) const {
    std::ofstream(path(name), std::ios::binary) << text;
  }

  static Outcome run(const std::vector<std::string>& arguments) {
    Program app("ringmaster", "test");
    add_tokenizer_commands(app);
    add_data_commands(app);
    testing::internal::CaptureStdout();
    Outcome outcome;
    try {
      app.parse(arguments);
    } catch (const std::exception& e) {
      outcome.error = e.what();
    }
    outcome.out = testing::internal::GetCapturedStdout();
    return outcome;
  }

  static void expect_parts(const std::string& text, const std::vector<std::string>& parts) {
    for (const std::string& part : parts)
      EXPECT_NE(text.find(part), std::string::npos) << "'" << part << "' is not in: " << text;
  }

 private:
  std::filesystem::path folder_ =
      std::filesystem::temp_directory_path() / ("ringmaster_commands_" + std::to_string(::getpid()));
};

TEST_F(DataCommands, APreparedCorpusIsInspected) {
  write("text.txt", "0123456789");
  const auto prepared = run({"data", "prepare", "--input", path("text.txt"), "--tokenizer", "chars", "--output",
                             path("c.h5"), "--validation-fraction", "0.2"});
  EXPECT_EQ(prepared.error, "");
  expect_parts(prepared.out, {"c.h5: 1 file, 10 bytes", "8 tokens in 1 document", "2 tokens in 1 document",
                              "chars, 10 tokens, hash "});
  const auto inspected = run({"data", "inspect", path("c.h5"), "--validation"});
  EXPECT_EQ(inspected.error, "");
  expect_parts(inspected.out, {"text.txt; documents: file; split: tail 0.2", "1.00 bytes per token",
                               "validation document 0, 2 tokens:\n89\n"});
  expect_parts(run({"data", "inspect", path("c.h5"), "--document", "1"}).error,
               {"--document: got 1", "c.h5 has 1 training document"});
}

TEST_F(DataCommands, SynthesizeWritesACorpus) {
  const auto made = run({"data", "synthesize", "--kind", "needles", "--context", "64", "--vocab-size", "48", "--pairs",
                         "3", "--documents", "1500", "--validation-documents", "2", "--output", path("n.h5")});
  EXPECT_EQ(made.error, "");
  expect_parts(made.out, {"n.h5: 1,502 documents of 64 tokens", "96,000 tokens in 1,500 documents", "4,500 count",
                          "chars, 48 tokens, hash "});
  expect_parts(run({"data", "inspect", path("n.h5")}).out,
               {"needles: 3 pairs and 3 queries in the last 6 of 64 tokens; seed 1", "4,500 count", "(4.7 %)"});
  const std::vector<std::string> again{"data", "synthesize", "--context", "64", "--pairs", "4", "--output"};
  const auto with = [&](const std::string& file, std::vector<std::string> more) {
    std::vector<std::string> all = again;
    all.push_back(path(file));
    all.insert(all.end(), more.begin(), more.end());
    return run(all).error;
  };
  expect_parts(with("n.h5", {}), {"n.h5 exists", "--force"});
  EXPECT_EQ(with("n.h5", {"--force"}), "");
  expect_parts(with("o.h5", {"--queries", "5"}), {"--queries 5", "4 pairs"});
  expect_parts(with("o.h5", {"--kind", "noise"}), {"--kind", "noise"});
  expect_parts(with("none/o.h5", {}), {"none"});
  EXPECT_FALSE(std::filesystem::exists(path("o.h5")));
}

TEST_F(DataCommands, InspectShowsTheCostOfPacking) {
  write("lines.txt", "aaaaaa\nbbb\nc\nddddd\neeeeeeeeee\n");  // 7, 4, 2, 6 and 11 tokens with their end tokens
  run({"data", "prepare", "--input", path("lines.txt"), "--document", "line", "--tokenizer", "bytes", "--output",
       path("c.h5"), "--validation-fraction", "0"});
  const auto inspected = run({"data", "inspect", path("c.h5"), "--context", "8"});
  EXPECT_EQ(inspected.error, "");
  // 30 tokens in rows of 8: b, d and e cross row borders. Best fit has rows of 8 (e), 7 (a), 6 (d) + 2 (c), and 4 (b) +
  // 3 (e).
  expect_parts(inspected.out, {"train in samples of 8 tokens\n", "in order        4 samples, 6.25 % padding, 3 of 5 ",
                               "best_fit: 1024  4 samples, 6.25 % padding, 1 of 5 documents cut\n"});
  expect_parts(run({"data", "inspect", path("c.h5"), "--context", "0"}).error, {"--context"});
}

TEST_F(DataCommands, TargetsAreCountedAndMarked) {
  const std::string turns = R"([{"role": "user", "content": "2+2"}, {"role": "assistant", "content": "4"}])";
  write("chats.jsonl", "{\"messages\": " + turns + "}\n{\"turns\": " + turns + ", \"messages\": " + turns + "}\n");
  const std::vector<std::string> prepare{"data",
                                         "prepare",
                                         "--input",
                                         path("chats.jsonl"),
                                         "--tokenizer",
                                         "bytes",
                                         "--chat-template",
                                         "plain",
                                         "--output",
                                         path("c.h5"),
                                         "--validation-fraction",
                                         "0"};
  const auto with = [&](std::vector<std::string> more) {
    std::vector<std::string> all = prepare;
    all.insert(all.end(), more.begin(), more.end());
    return run(all);
  };
  expect_parts(with({}).error, {"--chat-template plain", "--chat-field"});
  expect_parts(with({"--chat-field", "turns"}).error, {"chats.jsonl:1: ", "no 'turns'"});
  const auto prepared = with({"--chat-field"});  // without a name, the form with "messages" is found
  EXPECT_EQ(prepared.error, "");
  expect_parts(prepared.out, {"in 2 documents, of which 4 count", "(6.2 %)", "longest     32 tokens"});
  const auto inspected = run({"data", "inspect", path("c.h5")});
  EXPECT_EQ(inspected.error, "");
  expect_parts(inspected.out, {"[[marked like this]]", "training document 0, 32 tokens, of which 2 count",
                               "### user\n2+2\n\n### assistant\n[[4<|endoftext|>]]\n\n", "training document 1"});
  const std::string one = run({"data", "inspect", path("c.h5"), "--documents", "1", "--bytes", "10"}).out;
  expect_parts(one, {"(6.2 %):\n### user\n2...\n"});
  EXPECT_EQ(one.find("document 1"), std::string::npos);
}

TEST_F(DataCommands, TooFewTokensToTrainOnAreAWarning) {
  const auto warned = [&](std::size_t bytes) {
    write("t.txt", std::string(bytes, 'a'));
    testing::internal::CaptureStderr();
    run({"data", "prepare", "--input", path("t.txt"), "--tokenizer", "bytes", "--output", path("c.h5"), "--force",
         "--validation-fraction", "0"});
    return testing::internal::GetCapturedStderr();
  };
  expect_parts(warned(2), {"the training split has 3 tokens", "model.context + 1"});
  EXPECT_EQ(warned(63).find("the training split has"), std::string::npos);  // the end of the text is one more token
}

TEST_F(DataCommands, ChatFieldWithoutANameFindsTheForm) {
  write("share.jsonl", R"({"conversations": [{"from": "human", "value": "2+2"}, {"from": "gpt", "value": "4"}]})"
                       "\n"
                       R"({"instruction": "2+2", "input": "", "output": "4"})");
  const std::vector<std::string> prepare = {
      "data",  "prepare",         "--chat-field", "--input",  path("share.jsonl"), "--tokenizer",
      "bytes", "--chat-template", "plain",        "--output", path("c.h5"),        "--validation-fraction",
      "0"};
  const auto prepared = run(prepare);
  EXPECT_EQ(prepared.error, "");
  expect_parts(prepared.out, {"in 2 documents, of which 4 count", "(6.2 %)"});
  const std::string shown = run({"data", "inspect", path("c.h5"), "--documents", "2"}).out,
                    said = "### user\n2+2\n\n### assistant\n[[4";
  EXPECT_NE(shown.find(said), shown.rfind(said)) << shown;
  expect_parts(shown, {"documents: conversations of records"});
}

TEST(MarkedText, IsInColourOrBetweenBrackets) {
  const auto bytes = bytes_tokenizer();
  const std::vector<std::int32_t> ids{'a', 'b', 0xC3, 0xA9, 256};
  const std::vector<std::uint8_t> counts{1, 0, 0, 1, 1};
  EXPECT_EQ(marked_text(*bytes, ids, counts, 100, false), "[[a]]b\xC3[[\xA9<|endoftext|>]]");
  EXPECT_EQ(marked_text(*bytes, ids, counts, 100, true), "\x1b[1;32ma\x1b[0mb\xC3\x1b[1;32m\xA9<|endoftext|>\x1b[0m");
  EXPECT_EQ(marked_text(*bytes, ids, counts, 1, false), "[[a]]");
  EXPECT_EQ(marked_legend(false), "[[marked like this]]");
  EXPECT_EQ(marked_legend(true), "\x1b[1;32mmarked like this\x1b[0m");
}

// The tokenizer knows two characters and has no end-of-text token.
TEST_F(DataCommands, DocumentsWithoutTargetsAreNamed) {
  save_tokenizer(*chars_tokenizer("ab"), path("ab.rmt"));
  write("in.jsonl", R"({"p": "a", "c": "ab"})"
                    "\n"
                    R"({"p": "abab", "c": ""})"
                    "\n"
                    R"({"p": "ba", "c": "z"})"
                    "\n");
  testing::internal::CaptureStderr();
  const auto prepared =
      run({"data", "prepare", "--input", path("in.jsonl"), "--tokenizer", path("ab.rmt"), "--prompt-field", "p",
           "--completion-field", "c", "--output", path("c.h5"), "--validation-fraction", "0"});
  expect_parts(testing::internal::GetCapturedStderr(), {"2 documents", "no token counts", "in.jsonl: "});
  EXPECT_EQ(prepared.error, "");
  expect_parts(prepared.out, {"9 tokens in 3 documents, of which 2 count", "(22.2 %)"});
  testing::internal::CaptureStderr();
  const auto inspected = run({"data", "inspect", path("c.h5")});
  const std::string warned = testing::internal::GetCapturedStderr();
  expect_parts(warned, {"c.h5: no token of document 1", "document 2 counts"});
  EXPECT_EQ(warned.find("document 0"), std::string::npos);
  expect_parts(inspected.out, {"document 0, 3 tokens, of which 2 count", "(66.7 %):\na[[ab]]\n",
                               "document 1, 4 tokens, none", ":\nabab\n"});
}

TEST_F(DataCommands, VerifyNamesDamagedBlocks) {
  write("text.txt", std::string(200000, 'a') + std::string(100000, 'b'));
  for (const char* name : {"a.h5", "b.h5", "c.h5"})
    EXPECT_EQ(
        run({"data", "prepare", "--input", path("text.txt"), "--tokenizer", "bytes", "--output", path(name)}).error,
        "");
  const auto good = run({"data", "verify", path("a.h5"), path("b.h5")});
  EXPECT_EQ(good.error, "");
  expect_parts(good.out, {"a.h5: whole, ", "b.h5: whole, ", " blocks, "});
  std::fstream file(path("b.h5"), std::ios::in | std::ios::out | std::ios::binary);
  file.seekp(300000).put('\x7F');
  file.close();
  std::filesystem::resize_file(path("c.h5"), 5000);
  const auto bad = run({"data", "verify", path("a.h5"), path("b.h5"), path("c.h5")});
  expect_parts(bad.error, {"2 of 3 corpus files", "data prepare"});
  expect_parts(bad.out,
               {"a.h5: whole", "b.h5: /train/tokens is damaged: bytes ", "b.h5: 1 damaged of ", "c.h5 is truncated"});
}

TEST_F(DataCommands, DataSetsOfMegatronAreExportedAndImported) {
  write("text.txt", "one\ntwo\n");
  const std::vector<std::string> rest{"--tokenizer", "bytes", "--validation-fraction", "0", "--output"};
  const auto prepare = [&](const std::string& input, const std::string& output, const std::string& document) {
    std::vector<std::string> words{"data", "prepare", "--input", path(input), "--document", document};
    words.insert(words.end(), rest.begin(), rest.end());
    words.push_back(path(output));
    return run(words);
  };
  EXPECT_EQ(prepare("text.txt", "a.h5", "line").error, "");
  const std::vector<std::string> command{"data", "export", path("a.h5"), "--output", path("set")};
  const auto exported = run(command);
  EXPECT_EQ(exported.error, "");
  expect_parts(exported.out, {"set.bin and ", "set.idx:\n  train       8 tokens in 2 documents"});
  expect_parts(run(command).error, {"set.bin exists", "--force"});
  const auto back = prepare("set.idx", "b.h5", "file");
  EXPECT_EQ(back.error, "");
  expect_parts(back.out, {"b.h5: 1 file, 6 bytes of text", "8 tokens in 2 documents"});
  expect_parts(run({"data", "inspect", path("b.h5")}).out,
               {"set.bin; documents: from Megatron-LM's index", ":\none\n"});
  expect_parts(prepare("set.bin", "c.h5", "line").error,
               {"--document line splits text", "set.bin already holds tokens"});
}

TEST_F(DataCommands, JsonIsReadAsTextOnlyWithAsText) {
  write("a.json", "{\"text\": \"words\"}\n");
  const std::vector<std::vector<std::string>> commands{
      {"data", "prepare", "--input", path("a.json"), "--tokenizer", "bytes", "--output", path("c.h5"),
       "--validation-fraction", "0"},
      {"tokenizer", "train", "--input", path("a.json"), "--kind", "chars", "--output", path("t.rmt")}};
  for (auto command : commands) {
    expect_parts(run(command).error, {"a.json", "but JSON", "--as-text"});
    command.push_back("--as-text");
    EXPECT_EQ(run(command).error, "");
  }
}

TEST_F(DataCommands, AnExistingCorpusIsKept) {
  write("text.txt", "0123456789");
  write("c.h5", "precious");
  const std::vector<std::string> command{"data",  "prepare",  "--input",    path("text.txt"),        "--tokenizer",
                                         "bytes", "--output", path("c.h5"), "--validation-fraction", "0.5"};
  expect_parts(run(command).error, {"c.h5 exists", "--force"});
  EXPECT_EQ(std::filesystem::file_size(path("c.h5")), 8u);
  auto forced = command;
  forced.push_back("--force");
  EXPECT_EQ(run(forced).error, "");
  EXPECT_GT(std::filesystem::file_size(path("c.h5")), 100u);
}

TEST_F(DataCommands, APipeAsOutputIsNotReplaced) {
  write("text.txt", "abcba\n");
  ASSERT_EQ(::mkfifo(path("pipe").c_str(), 0600), 0);
  const std::vector<std::vector<std::string>> commands = {
      {"tokenizer", "train", "--input", path("text.txt"), "--kind", "chars", "--output", path("pipe")},
      {"data", "prepare", "--input", path("text.txt"), "--tokenizer", "bytes", "--output", path("pipe"), "--force"}};
  for (const auto& command : commands) expect_parts(run(command).error, {"pipe: it is a device"});
  EXPECT_TRUE(std::filesystem::is_fifo(path("pipe")));
}

TEST_F(DataCommands, AnOutputThatIsAnInputIsRefused) {
  write("text.txt", "abcba\n");
  std::filesystem::create_hard_link(path("text.txt"), path("link.txt"));
  for (const char* output : {"text.txt", "link.txt"}) {
    SCOPED_TRACE(output);
    expect_parts(run({"data", "prepare", "--input", path("text.txt"), "--tokenizer", "bytes", "--output", path(output),
                      "--force"})
                     .error,
                 {"--output", output, "is the input", "text.txt"});
    expect_parts(
        run({"tokenizer", "train", "--input", path(""), "--kind", "chars", "--output", path(output), "--force"}).error,
        {"--output", output, "is the input"});
  }
  EXPECT_EQ(ring::read_file(path("text.txt")), "abcba\n");
  EXPECT_EQ(run({"data", "prepare", "--input", path("text.txt"), "--tokenizer", "bytes", "--output", path("c.h5"),
                 "--validation-fraction", "0"})
                .error,
            "");
  EXPECT_EQ(run({"data", "export", path("c.h5"), "--output", path("set")}).error, "");
  const std::string empty = run({"data", "prepare", "--input", path("set.bin"), "--tokenizer", "bytes", "--output",
                                 path("d.h5"), "--validation-fraction", "0.01"})
                                .error;
  expect_parts(empty, {"split of", "is empty", "--validation-input"});
  EXPECT_EQ(empty.find("--split tail"), std::string::npos) << "tokens cannot be split there";
  for (const char* output : {"set.bin", "set.idx"})
    expect_parts(run({"data", "prepare", "--input", path("set.bin"), "--tokenizer", "bytes", "--output", path(output),
                      "--validation-fraction", "0", "--force"})
                     .error,
                 {"--output", output, "is the input"});
}

TEST_F(DataCommands, ATrainedTokenizerEncodesAndDecodes) {
  write("text.txt", "abcba\n");
  const auto trained = run({"tokenizer", "train", "--input", path("text.txt"), "--kind", "chars", "--end-of-text",
                            "--output", path("t.rmt")});
  EXPECT_EQ(trained.error, "");
  expect_parts(trained.out, {"t.rmt: chars, 5 tokens, hash "});
  expect_parts(
      run({"tokenizer", "train", "--input", path("text.txt"), "--kind", "chars", "--output", path("t.rmt")}).error,
      {"t.rmt exists", "--force"});
  write("other.txt", "xyz\n");
  const auto replaced = run(
      {"tokenizer", "train", "--input", path("other.txt"), "--kind", "chars", "--output", path("t.rmt"), "--force"});
  EXPECT_EQ(replaced.error, "");
  EXPECT_EQ(run({"tokenizer", "encode", path("t.rmt"), "zyx"}).out, "3 2 1\n");
  EXPECT_EQ(run({"tokenizer", "train", "--input", path("text.txt"), "--kind", "chars", "--end-of-text", "--output",
                 path("t.rmt"), "--force"})
                .error,
            "");
  EXPECT_EQ(run({"tokenizer", "encode", path("t.rmt"), "abc", "cb"}).error, "");
  EXPECT_EQ(run({"tokenizer", "encode", path("t.rmt"), "abccb"}).out, "1 2 3 3 2\n");
  EXPECT_EQ(run({"tokenizer", "encode", path("t.rmt"), "--pieces", "ab\n"}).out, "1\ta\n2\tb\n0\t\\n\n");
  EXPECT_EQ(run({"tokenizer", "decode", path("t.rmt"), "1", "2", "0"}).out, "ab\n");
  EXPECT_EQ(run({"tokenizer", "decode", path("t.rmt"), "1 2  0"}).out, "ab\n");
  expect_parts(run({"tokenizer", "decode", path("t.rmt"), "1 b"}).error, {"ids", "b"});
  expect_parts(run({"tokenizer", "decode", path("t.rmt"), "5"}).error, {"token 5", "5 tokens"});
  expect_parts(run({"tokenizer", "inspect", path("t.rmt")}).out,
               {"kind         chars", "5 tokens", "4 <|endoftext|>", "not exact for every input", "3\tc\n"});
  expect_parts(run({"tokenizer", "inspect", "bytes"}).out, {"257 tokens", "round trip   exact for any input"});
}

TEST_F(DataCommands, EncodeShowsTheOffsetsOfTokens) {
  EXPECT_EQ(run({"tokenizer", "encode", "bytes", "--offsets", "a\xC3\xA9"}).out,
            "97\t0\t1\ta\n195\t1\t3\t<0xc3>\n169\t1\t3\t<0xa9>\n");  // both tokens are bytes of the same character
  expect_parts(run({"tokenizer", "encode", "bytes", "--offsets", "--special", "a"}).error, {"--offsets", "--special"});
}

#ifdef RING_WITH_UTF8PROC

TEST_F(DataCommands, ATrainedTokenizerJsonIsUsed) {
  write("text.txt", "ab ab ab ab");
  const std::string file = path("tokenizer.json");
  const auto train = [&](const std::string& pattern) {
    return run({"tokenizer", "train", "--input", path("text.txt"), "--kind", "byte-bpe", "--pattern", pattern,
                "--vocab-size", "300", "--output", file});
  };
  expect_parts(train("words").error, {"--pattern", "words"});
  const auto trained = train("llama3");
  EXPECT_EQ(trained.error, "");
  expect_parts(trained.out, {"tokenizer.json: byte-bpe, 259 tokens"});  // end token, 256 bytes, "ab", " ab"
  EXPECT_EQ(run({"tokenizer", "encode", file, "ab ab"}).out, "257 258\n");
  EXPECT_EQ(run({"tokenizer", "encode", file, "--offsets", "ab ab"}).out, "257\t0\t2\tab\n258\t2\t5\t ab\n");
  EXPECT_EQ(run({"tokenizer", "decode", file, "258", "0", "257"}).out, " abab");
  expect_parts(run({"tokenizer", "inspect", file}).out,
               {"kind         tokenizer.json", "259 tokens", "0 <|endoftext|>", "exact for any input"});
  EXPECT_EQ(run({"data", "prepare", "--input", path("text.txt"), "--tokenizer", file, "--output", path("c.h5"),
                 "--validation-fraction", "0"})
                .error,
            "");
  expect_parts(run({"data", "inspect", path("c.h5")}).out, {"tokenizer.json, 259 tokens", "5 tokens in 1 document"});
}

TEST_F(DataCommands, EncodeShowsSpecialTokensAroundAText) {
  write("tokenizer.json", R"({
    "added_tokens": [{"id": 2, "content": "<s>", "special": true}, {"id": 3, "content": "</s>", "special": true}],
    "model": {"type": "BPE", "vocab": {"a": 0, "b": 1}, "merges": []},
    "decoder": {"type": "Fuse"},
    "post_processor": {
      "type": "TemplateProcessing",
      "single": [{"SpecialToken": {"id": "<s>"}}, {"Sequence": {"id": "A"}}, {"SpecialToken": {"id": "</s>"}}],
      "special_tokens": {"<s>": {"ids": [2]}, "</s>": {"ids": [3]}}}})");
  const std::string file = path("tokenizer.json");
  EXPECT_EQ(run({"tokenizer", "encode", file, "ab"}).out, "0 1\n");
  EXPECT_EQ(run({"tokenizer", "encode", file, "--special", "ab"}).out, "2 0 1 3\n");
  EXPECT_EQ(run({"tokenizer", "encode", file, "--special", "--pieces", "b"}).out, "2\t<s>\n1\tb\n3\t</s>\n");
}

#endif

TEST_F(DataCommands, BadArgumentsAreRefused) {
  write("empty.txt", "");
  expect_parts(
      run({"tokenizer", "train", "--input", path("empty.txt"), "--kind", "chars", "--output", path("t.rmt")}).error,
      {"the input is empty", "empty.txt"});
  expect_parts(
      run({"tokenizer", "train", "--input", path("empty.txt"), "--kind", "words", "--output", path("t.rmt")}).error,
      {"--kind", "words"});
  expect_parts(
      run({"data", "prepare", "--input", path("none"), "--tokenizer", "bytes", "--output", path("c.h5")}).error,
      {"none: no such file"});
  expect_parts(run({"data", "inspect", path("none.h5")}).error, {"none.h5: No such file", "ringmaster data prepare"});
  expect_parts(run({"data", "prepare", "--tokenizer", "bytes", "--output", path("c.h5")}).error,
               {"--input is required"});
}

TEST(DataText, NumbersAndTextsAreFormatted) {
  EXPECT_EQ(with_commas(0), "0");
  EXPECT_EQ(with_commas(999), "999");
  EXPECT_EQ(with_commas(1000), "1,000");
  EXPECT_EQ(with_commas(1234567), "1,234,567");
  EXPECT_EQ(format_bytes(999), "999 bytes");
  EXPECT_EQ(format_bytes(1500), "1.5 KB");
  EXPECT_EQ(format_bytes(2.5e9), "2.5 GB");
  EXPECT_EQ(escape_control_characters("a\n\t\x01z"), "a\\n\\t\\x01z");
  EXPECT_EQ(truncate_text("caf\xC3\xA9", 4), "caf...");
  EXPECT_EQ(truncate_text("caf\xC3\xA9", 5), "caf\xC3\xA9");
}

}  // namespace
}  // namespace ring
