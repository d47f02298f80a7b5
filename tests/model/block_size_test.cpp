// Blocks of a different size that keep as many tokens.
#include "model/attention/block_size.h"

#include <gtest/gtest.h>

#include "core/fields.h"
#include "model/attention/section_text.h"
#include "model/config.h"
#include "model/flops.h"

namespace ring {
namespace {

ModelConfig with_attention(const std::string& attention) {
  ModelConfig c;
  load_config_text(c, "{context: 8192, attention: {kind: block_sparse}}", "test", {"attention=" + attention});
  return c.resolved();
}
AttentionConfig section(const std::string& attention) { return with_attention(attention).attention; }

std::string changed(const std::string& attention, std::int64_t block) {
  return block_text(with_block_size(section(attention), block));
}

TEST(BlockSize, CountsAreScaledAndSharesAreKept) {
  EXPECT_EQ(
      changed("{block: 64, rules: [{local: 8, first: 2, every: 4}, {pattern: strided, local: 3, every: 8}]}", 128),
      "{block: 128, rules: [{pattern: local_global, local: 4, first: 1, every: 4}, {pattern: strided, local: 2, "
      "every: 8}]}");
  EXPECT_EQ(changed("{rules: [{pattern: random, density: 0.25, seed: 7}, {pattern: hierarchical, local: 2}]}", 64),
            "{block: 64, rules: [{pattern: random, local: 2, density: 0.25, seed: 7}, {pattern: hierarchical, local: "
            "4}]}");
  EXPECT_EQ(
      changed("{block: 64, rules: [{pattern: learned, local: 6, first: 1, keep: [[0, 64], [20000000, 15]]}]}", 128),
      "{block: 128, rules: [{pattern: learned, local: 3, first: 1, keep: [[0, 32], [20000000, 8]]}]}");
  EXPECT_EQ(changed("{rules: [{keep: 16, pattern: importance, explore: 2, interval: 50}]}", 64),
            "{block: 64, rules: [{pattern: importance, local: 2, keep: 32, interval: 50, explore: 4}]}");
}

TEST(BlockSize, SelectionsStillSelectABlock) {
  EXPECT_EQ(changed("{block: 64, rules: [{pattern: content, local: 2, first: 1, keep: 4}]}", 128),
            "{block: 128, rules: [{pattern: content, local: 2, first: 1, keep: 4}]}")
      << "the block before is local, and one is selected";
  EXPECT_EQ(changed("{block: 64, rules: [{pattern: content, keep: 4}]}", 128),
            "{block: 128, rules: [{pattern: content, keep: 2}]}");
  EXPECT_EQ(changed("{block: 64, rules: [{pattern: importance, keep: 3, explore: 1}]}", 128),
            "{block: 128, rules: [{pattern: importance, keep: 3, explore: 1}]}")
      << "one by importance, one by chance";
}

TEST(BlockSize, TheSameSizeChangesNothing) {
  const AttentionConfig whole = section("{rules: [{pattern: content, local: 3, keep: 7}], heads: [0]}");
  AttentionConfig same = with_block_size(whole, 128);
  EXPECT_EQ(same.block, 128);
  same.block = 0;
  EXPECT_EQ(to_yaml(same), to_yaml(whole));
}

// The printed settings equal the measured ones.
TEST(BlockSize, TheTextGivesTheSameSection) {
  for (const char* attention :
       {"{block: 64, rules: [{local: 8}, {pattern: random, density: 0.3, seed: 9}], heads: [1, 0], pools: [16]}",
        "{rules: [{pattern: importance, local: 2, keep: 9, explore: 1, decay: 0.5}]}",
        "{rules: [{pattern: content, keep: [[0, 64], [1000, 5]]}], layers_per_selection: 2}"})
    for (const std::int64_t block : {64, 128}) {
      ModelConfig c = with_attention(attention);
      const AttentionConfig want = with_block_size(c.attention, block);
      override_config(c, {"attention=" + block_text(want)});
      EXPECT_EQ(to_yaml(c.attention), to_yaml(want)) << attention;
    }
}

TEST(BlockSize, KeepsAsManyTokens) {
  for (const char* rules : {"[{local: 8, first: 2, every: 4}]", "[{pattern: strided, local: 4, every: 8}]",
                            "[{pattern: hierarchical, local: 4}]", "[{pattern: random, local: 2, density: 0.25}]",
                            "[{pattern: content, local: 4, first: 2, keep: 16}]"}) {
    ModelConfig c = with_attention(str("{block: 64, rules: ", rules, "}"));
    const auto pairs = [&](std::int64_t block) {
      ModelConfig m = c;
      m.attention = with_block_size(m.attention, block);
      return attention_pairs(m);
    };
    EXPECT_NEAR(pairs(128) / pairs(64), 1, 0.1) << rules;
  }
}

TEST(BlockSize, AFileFixesTheSize) {
  AttentionConfig c = section("{rules: [{}, {pattern: file, file: a.blocks}]}");
  EXPECT_FALSE(can_change_block_size(c));
  c.rules.pop_back();
  EXPECT_TRUE(can_change_block_size(c));
}

}  // namespace
}  // namespace ring
