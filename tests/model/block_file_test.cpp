// Block patterns from text files: their meaning, and errors for mistakes.

#include "model/attention/patterns/block_file.h"

#include <gtest/gtest.h>

#include <ctime>
#include <filesystem>
#include <fstream>
#include <set>

#include "core/check.h"
#include "model/patterns.h"
#include "tests/error_of.h"

namespace ring::test {
namespace {

using Blocks = std::set<std::pair<int, int>>;

// Returns the blocks that a head keeps among 40 x 70 blocks, without the diagonal.
Blocks kept(const BlockPattern& p, std::int32_t head) {
  Blocks all;
  for (int q = 0; q < 40; ++q)
    for (int k = 0; k < 70; ++k)
      if (q != k && p.keeps(head, q, k)) all.emplace(q, k);
  return all;
}

// Returns the pattern of 4 KV heads that follow rule 0 (the newest 2 blocks) or rule 1 (the file).
BlockPattern combined(const std::string& path, std::vector<std::int64_t> heads) {
  ModelConfig c;
  c.context = 1280, c.kv_heads = 4;
  c.attention = {
      .kind = "block_sparse", .rules = {{.local = 2}, {.pattern = "file", .file = path}}, .heads = std::move(heads)};
  return *ring::pattern_of(c.resolved(), 0).blocks;
}

BlockPattern pattern_of(const std::string& text, std::int32_t kv_heads = 1) {
  std::vector<std::int32_t> heads, of_head(static_cast<std::size_t>(kv_heads));
  for (std::int32_t h = 0; h < kv_heads; ++h) heads.push_back(h);
  std::vector<BlockRule> rules;
  std::vector<std::uint32_t> bits;
  BlockFile::parse(text, "my.blocks").add_rules(heads, of_head, rules, bits);
  return {64, rules, of_head, bits};
}

std::string error_of(const std::string& text, std::int32_t kv_heads = 4) {
  try {
    pattern_of(text, kv_heads);
  } catch (const Error& e) {
    return e.what();
  }
  return "no error";
}

TEST(BlockFile, LinesAddUp) {
  const BlockPattern p = pattern_of("# a comment\n\n  3: 0, 2\t# more\r\n3:1\n5-6: 0-2 4\n2: 31-65");
  Blocks want = {{3, 0}, {3, 1}, {3, 2}};
  for (const int q : {5, 6})
    for (const int k : {0, 1, 2, 4}) want.emplace(q, k);
  for (int k = 31; k <= 65; ++k) want.emplace(2, k);
  EXPECT_EQ(kept(p, 0), want);
  EXPECT_TRUE(p.keeps(0, 0, 0));
  EXPECT_NO_THROW(p.check_covers(7 * 64, "attention"));
  EXPECT_THROW(p.check_covers(7 * 64 + 1, "attention"), Error);
}

TEST(BlockFile, HeadsHaveSections) {
  const BlockPattern p = pattern_of("4: 0\nhead 2\n4: 1\n8: 5\nheads 0-1\n4: 2\n", 5);
  EXPECT_EQ(kept(p, 0), (Blocks{{4, 2}}));
  EXPECT_EQ(kept(p, 1), (Blocks{{4, 2}}));
  EXPECT_EQ(kept(p, 2), (Blocks{{4, 1}, {8, 5}}));
  EXPECT_EQ(kept(p, 3), (Blocks{{4, 0}}));
  EXPECT_EQ(kept(p, 4), (Blocks{{4, 0}}));
  EXPECT_EQ(p.rule_index(0), p.rule_index(1));
  EXPECT_EQ(p.rule_index(3), p.rule_index(4));
  EXPECT_THROW(p.check_covers(5 * 64 + 1, "attention"), Error);  // limited by the smallest section
}

TEST(BlockFile, MistakesAreNamed) {
  EXPECT_EQ(error_of("1: 0\nblock 7\n"), "my.blocks:2: expected a line such as '8: 0 6-8' or 'heads 0-3', got 'block'");
  EXPECT_EQ(error_of("1: 0\n\n2: 0 x1\n"),
            "my.blocks:3: 'x1' is not a block of keys. Give a number from 0 to 32767, or a range such as 5-8");
  EXPECT_EQ(error_of("-2: 0"),
            "my.blocks:1: '-2' is not a block of queries. Give a number from 0 to 32767, or a range such as 5-8");
  EXPECT_EQ(error_of("40000: 0"),
            "my.blocks:1: '40000' is not a block of queries. Give a number from 0 to 32767, or a range such as 5-8");
  EXPECT_EQ(error_of("99999999999: 0").substr(0, 40), "my.blocks:1: '99999999999' is not a bloc");
  EXPECT_EQ(error_of("4: 3-1"), "my.blocks:1: '3-1' is reversed. Write 1-3");
  EXPECT_EQ(error_of("4:  # none"), "my.blocks:1: no blocks of keys after '4:'. Name them, as in '8: 0 6-8'");
  EXPECT_EQ(error_of("4 5: 1").substr(0, 32), "my.blocks:1: '4 5' is not a bloc");
  EXPECT_EQ(error_of("heads 0-2\n1: 0\nhead 1\n1: 0"),
            "my.blocks:3: head 1 and heads 0-2 of line 1 overlap. Keep one section per head");
  EXPECT_EQ(error_of("head"), "my.blocks:1: '' is not a head. Give a number from 0 to 32767, or a range such as 5-8");
  EXPECT_EQ(error_of("1: 0\nheads 1-2\n"),
            "my.blocks:2: no blocks follow for heads 1-2. Add lines such as '8: 0 6-8', or remove the section");
  EXPECT_EQ(error_of("# nothing\n"), "my.blocks: contains no blocks. Add lines such as '8: 0 6-8'");
  EXPECT_EQ(error_of("1: 0\nheads 2-4\n1: 0"),
            "my.blocks:2: KV head 4 does not exist: the model has 4, counted from 0. Remove it");
  EXPECT_EQ(error_of("heads 0-2\n1: 0"),
            "my.blocks: no blocks for KV head 3 of 4. Add a section 'head 3', or lines before the first section, which "
            "apply to all other heads");
}

TEST(BlockFile, IsCombinedWithOtherRules) {
  const std::string path = (std::filesystem::path(testing::TempDir()) / "block_file_test.txt").string();
  std::ofstream(path) << "head 1\n9: 0\nhead 3\n9: 1\n";  // heads 0 and 2 follow the other rule
  const BlockPattern p = combined(path, {0, 1});
  EXPECT_EQ(p.block(), 128);
  for (const std::int32_t head : {0, 2}) {
    EXPECT_TRUE(p.keeps(head, 9, 8));
    EXPECT_FALSE(p.keeps(head, 9, 0));
  }
  EXPECT_EQ(kept(p, 1), (Blocks{{9, 0}}));
  EXPECT_EQ(kept(p, 3), (Blocks{{9, 1}}));
  EXPECT_THROW(combined(path, {1}), Error);
  std::filesystem::remove(path);
  try {
    BlockFile::read(path);
    FAIL();
  } catch (const Error& e) {
    EXPECT_EQ(std::string(e.what()),
              "cannot read " + path + ": it does not exist. Give the path of a text file of blocks");
  }
}

TEST(BlockFile, ByteOrderMarksAndOtherLineEndsAreIgnored) {
  const std::string path = (std::filesystem::path(testing::TempDir()) / "block_file_marked_test.txt").string();
  std::ofstream(path) << "\xEF\xBB\xBF"
                      << "head 1\r\n9: 0\r\nhead 3\r\n9: 1-2 4\r\n";
  const BlockPattern p = combined(path, {0, 1});
  EXPECT_EQ(kept(p, 1), (Blocks{{9, 0}}));
  EXPECT_EQ(kept(p, 3), (Blocks{{9, 1}, {9, 2}, {9, 4}}));
  std::filesystem::remove(path);
}

TEST(BlockFile, MistakesNameTheSettingAndTheFile) {
  const std::string path = (std::filesystem::path(testing::TempDir()) / "block_file_key_test.txt").string();
  ModelConfig c;
  c.context = 256;
  const AttentionConfig section{
      .kind = "block_sparse", .block = 64, .rules = {{.local = 2}, {.pattern = "file", .file = path}}, .heads = {0, 1}};
  c.attention_layers = {{"0", {}}, {"1", section}};
  const auto error = [&] { return ring::error_of([&] { patterns_of(c.resolved()); }); };
  const std::string key = "model.attention_layers[1].attention.rules[1].file: ";
  std::ofstream(path) << "3: 0\nblock 7\n";
  EXPECT_EQ(error().find(key + path + ":2: "), 0u) << error();
  std::ofstream(path) << "0-2: 0\n";
  EXPECT_EQ(error(), key + path +
                         ": ends after 3 query blocks, but a context of 256 tokens has 4 of 64. Add lines for the "
                         "others, or shorten model.context");
  c.attention = section;
  c.attention_layers.clear();
  std::filesystem::remove(path);
  EXPECT_EQ(error().find("model.attention.rules[1].file: cannot read " + path), 0u) << error();
}

// A few bytes may name very many blocks. Files that would take gigabytes or hours are refused before blocks are stored.
TEST(BlockFile, EnormousPatternsAreRefused) {
  std::string sections, overlaps = "0-32767:";
  for (int head = 0; head < 64; ++head) sections += str("head ", head, "\n32767: 32767\n");
  EXPECT_NE(error_of(sections, 64).find("32768 x 32768 blocks"), std::string::npos) << error_of(sections, 64);
  EXPECT_NE(error_of(sections, 64).find("is too large"), std::string::npos) << error_of(sections, 64);
  for (int i = 0; i < 100; ++i) overlaps += " 0-32767";
  EXPECT_NE(error_of(overlaps).find("is too large"), std::string::npos) << error_of(overlaps);
  EXPECT_LT(error_of(std::string(1 << 20, 'x')).size(), 300u);
  EXPECT_LT(error_of("1: " + std::string(1 << 20, '9')).size(), 300u);
}

TEST(BlockFile, ManySectionsAreReadQuickly) {
  std::string text;
  for (int head = 0; head < 10'000; ++head) text += str("head ", head, "\n1: 0\n");
  const std::clock_t start = std::clock();
  const BlockPattern p = pattern_of(text, 10'000);
  EXPECT_TRUE(p.keeps(9'999, 1, 0));
  EXPECT_LT(static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC, 0.5);
}

TEST(BlockFile, OnlyRegularFilesAreRead) {
  EXPECT_THROW(BlockFile::read("/dev/zero"), Error);
  EXPECT_THROW(BlockFile::read("/tmp"), Error);
}

}  // namespace
}  // namespace ring::test
