// Keys of other ranks that a rank attends to, compared with a check of every single key, and their display in
// `attention show`.

#include "inspect/referenced_keys.h"

#include <gtest/gtest.h>

#include "kernels/attention/blocks.h"
#include "tests/cases/attention_oracle.h"
#include "tests/paths.h"
#include "tests/process.h"

namespace ring::test {
namespace {

constexpr std::int64_t kKeyHeads = 4;

std::vector<std::int32_t> rows_of(const ContextLayout& layout, int rank) {
  std::vector<std::int32_t> rows;
  for (const ContextLayout::Chunk& c : layout.chunks(rank))
    for (std::int64_t t = c.begin; t < c.end; ++t) rows.push_back(static_cast<std::int32_t>(t));
  return rows;
}

// Counts by definition: key by key, head by head, query by query.
ReferencedKeys count_keys(const Pattern& p, std::int64_t slices, const ContextLayout& layout) {
  ReferencedKeys sum;
  for (int r = 0; r < layout.ranks(); ++r) {
    const std::vector<std::int32_t> own = rows_of(layout, r);
    for (std::int32_t u = 0; u < layout.length(); ++u) {
      if (own.empty() || std::ranges::count(own, u) || u > own.back()) continue;
      sum.before += 1;
      for (std::int64_t s = 0; s < slices; ++s) {
        std::int64_t heads = 0;
        for (std::int64_t h = s * kKeyHeads / slices; h < (s + 1) * kKeyHeads / slices; ++h)
          heads += std::ranges::any_of(
              own, [&](std::int32_t t) { return multiplicity(p, static_cast<std::int32_t>(h), t, u, 0) > 0; });
        sum.by_head += static_cast<double>(heads) / kKeyHeads;
        sum.by_any += static_cast<double>(heads > 0) / static_cast<double>(slices);
      }
    }
  }
  return sum;
}

// Makes a rule in which block q sees the blocks of its bits, and itself.
BlockRule drawn(std::int64_t first_word) {
  BlockRule rule{.kind = BlockRuleKind::drawn};
  rule.first_word = first_word, rule.rows = 8, rule.words = 1;
  return rule;
}

// Makes a pattern of two tables of 8 blocks of 64, which alternate between heads.
Pattern drawn_pattern(const std::vector<std::uint32_t>& one, const std::vector<std::uint32_t>& other) {
  std::vector<std::uint32_t> bits = one;
  bits.insert(bits.end(), other.begin(), other.end());
  return block_sparse(64, {drawn(0), drawn(8)}, true, bits);
}

std::vector<Pattern> patterns() {
  const BlockRule near{.local = 2, .first = 1}, levels{.kind = BlockRuleKind::hierarchical, .local = 1},
      random{.kind = BlockRuleKind::random, .threshold = random_threshold(0.2), .seed = 2};
  return {dense(),
          window(37, 3),
          window(1),
          block_sparse(64, {near, random, levels}),
          block_sparse(128, {random}),
          pooled(block_sparse(64, {near, random}), {16}),
          dilated({{32, 1}, {64, 2}}),
          drawn_pattern({1, 2, 5, 9, 16, 34, 65, 130}, {1, 3, 4, 9, 17, 32, 96, 128})};
}

TEST(ReferencedKeys, AreThoseThatAnyQuerySees) {
  const std::vector<Pattern> all = patterns();
  for (std::size_t i = 0; i < all.size(); ++i)
    for (const auto kind : {ContextLayoutKind::zigzag, ContextLayoutKind::contiguous})
      for (const int ranks : {2, 3})
        for (const std::int64_t align : {1, 64})
          for (const std::int64_t slices : {1, 2, 4}) {
            const ContextLayout layout(kind, 450, ranks, align);
            const ReferencedKeys got = referenced_keys(all[i], kKeyHeads, slices, layout),
                                 want = count_keys(all[i], slices, layout);
            const auto name = [&] { return str("pattern ", i, ", ", ranks, " ranks, align ", align, ", ", slices); };
            EXPECT_DOUBLE_EQ(got.before, want.before) << name();
            EXPECT_NEAR(got.by_head, want.by_head, 1e-9 * want.before) << name();
            EXPECT_NEAR(got.by_any, want.by_any, 1e-9 * want.before) << name();
          }
}

// Each block sees itself and blocks of its own rank. Of blocks 0 to 3 of the other rank, block 5 sees block 2; in the
// other head, blocks 6 and 7 see block 1, and block 7 also block 2.
TEST(ReferencedKeys, LeaveOutKeysOfTheRankItself) {
  const ContextLayout halves(ContextLayoutKind::contiguous, 512, 2, 64);
  const Pattern own = drawn_pattern({1, 3, 7, 15, 16, 48, 112, 240}, {1, 3, 7, 15, 16, 48, 112, 240});
  EXPECT_EQ(referenced_keys(own, kKeyHeads, 1, halves).by_any, 0);
  const Pattern p = drawn_pattern({1, 3, 7, 15, 16, 48 + 4, 112, 240}, {1, 3, 7, 15, 16, 48, 112 + 2, 240 + 2 + 4});
  const ReferencedKeys keys = referenced_keys(p, kKeyHeads, 1, halves);
  EXPECT_EQ(keys.before, 4 * 64);
  EXPECT_EQ(keys.by_head, 1.5 * 64);
  EXPECT_EQ(keys.by_any, 2 * 64);
}

// Rank 0 has blocks 0, 1, 6 and 7. Of blocks 2 to 5, block 6 sees block 3 in one head, and block 7 sees blocks 3 and 5
// in the other. Rank 1 has blocks 2 to 5: block 3 sees block 1.
TEST(ReferencedKeys, AreCountedForZigzagRows) {
  const ContextLayout zigzag(ContextLayoutKind::zigzag, 512, 2, 64);
  const Pattern p = drawn_pattern({1, 2, 4, 8 + 2, 16, 32, 64 + 1 + 8, 128}, {1, 2, 4, 8, 16, 32, 64, 128 + 8 + 32});
  const ReferencedKeys keys = referenced_keys(p, kKeyHeads, 1, zigzag);
  EXPECT_EQ(keys.before, (4 + 2) * 64);
  EXPECT_EQ(keys.by_head, 2 * 64);
  EXPECT_EQ(keys.by_any, 3 * 64);
}

TEST(ReferencedKeys, AreAllForDenseAttention) {
  for (const auto kind : {ContextLayoutKind::zigzag, ContextLayoutKind::contiguous})
    for (const int ranks : {1, 2, 5}) {
      const ReferencedKeys keys = referenced_keys(dense(), kKeyHeads, 2, {kind, 500, ranks});
      EXPECT_EQ(keys.before > 0, ranks > 1);
      EXPECT_EQ(keys.by_head, keys.before);
      EXPECT_EQ(keys.by_any, keys.before);
    }
}

// Any block may be selected.
TEST(ReferencedKeys, AreAllForAnUnknownSelection) {
  const Pattern p = block_sparse(64, {{.kind = BlockRuleKind::content, .local = 1, .keep = 2}});
  const ReferencedKeys keys = referenced_keys(p, kKeyHeads, 1, {ContextLayoutKind::contiguous, 512, 2, 64});
  EXPECT_EQ(keys.before, 256);
  EXPECT_EQ(keys.by_any, keys.before);
}

// --- the command ---

// The settings have 1024 tokens in blocks of 64. Two heads have local 2 and first 1, one is hierarchical, and one is
// strided: local 2, every 4.
std::string output_of_show(const std::vector<std::string>& overrides) {
  std::vector<std::string> command = {
      ring_binary(), "attention", "show", source_dir() + "/configs/shakespeare_block_sparse.yaml", "--width", "80"};
  command.insert(command.end(), overrides.begin(), overrides.end());
  const Finished f = run_process(command);
  EXPECT_EQ(f.code, 0) << f.output;
  return f.output;
}

void expect_lines(const std::vector<std::string>& overrides, const std::string& rows, const std::string& line) {
  const std::string output = output_of_show(overrides), title = "with\nparallel.cp: 2";
  EXPECT_NE(output.find(title + rows + ":\nlayers 0-3: " + line), std::string::npos) << line << " in " << output;
}

constexpr const char *kZigzag = "parallel.cp_layout=zigzag", *kAttention = "model.attention=";

// Queries of blocks 8 to 15 see these of blocks 0 to 7: two heads see blocks 0 and 7. The other two see the blocks at
// distance 2, 4 or 8, and at distance 1, 4 or 8: together all.
TEST(ReferencedKeysShown, EqualClosedForms) {
  EXPECT_EQ(output_of_show({"parallel.tp=2"}).find("other ranks"), std::string::npos);
  expect_lines({"parallel.cp=2"}, ", rows contiguous", "62.5 % by one KV head, 100.0 % by any of 4 KV heads");
  expect_lines({"parallel.cp=2", "parallel.tp=2"}, ", parallel.tp: 2, rows contiguous",
               "62.5 % by one KV head, 62.5 % by any of 2 KV heads");
  expect_lines({"parallel.cp=2", kZigzag, "model.attention.kind=dense"}, ", rows zigzag",
               "100.0 % by one KV head, 100.0 % by any of 4 KV heads");
  // Query 512 sees the 99 keys before it and 4 sinks: 103 of 512 keys.
  expect_lines({"parallel.cp=2", str(kAttention, "{kind: window, window: 100, sinks: 4}")}, ", rows contiguous",
               "20.1 % by one KV head, 20.1 % by any of 4 KV heads");
}

// Rows are laid out for the ring schedule, which pools need, and are therefore zigzag. Of the 256 keys before chunk 3,
// chunks 0 and 3 see 12; chunk 1 sees 12 of chunk 0.
TEST(ReferencedKeysShown, LeaveOutPools) {
  const std::string attention = str(kAttention, "{kind: window, window: 13, sinks: 0, pools: [16]}");
  for (const char* schedule : {"ring", "all_to_all", "auto"})
    expect_lines({"parallel.cp=2", attention, str("parallel.cp_schedule=", schedule)}, ", rows zigzag",
                 "3.1 % by one KV head, 3.1 % by any of 4 KV heads");
}

// Blocks that such layers select do not follow from the settings.
TEST(ReferencedKeysShown, AreUnknownForSelectedBlocks) {
  for (const char* pattern : {"content", "learned", "importance"})
    expect_lines({"parallel.cp=2", str(kAttention, "{kind: block_sparse, block: 64, rules: [{pattern: ", pattern,
                                       ", keep: 4}], heads: []}")},
                 ", rows contiguous", "known only for a run");
  expect_lines({"parallel.cp=2", "--length", "1"}, ", rows contiguous", "no rank has earlier keys");
}

}  // namespace
}  // namespace ring::test
