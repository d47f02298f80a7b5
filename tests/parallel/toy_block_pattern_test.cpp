// A new block pattern is a file and a name. This one sees distances that are powers of a number. Only this file knows
// it, and still it has settings, messages and blocks that kernels read.
#include <gtest/gtest.h>

#include "core/check.h"
#include "core/fields.h"
#include "model/attention/block_patterns.h"
#include "model/patterns.h"

namespace ring::test {
namespace {

bool is_power(std::int64_t n, std::int64_t base) {
  while (n > 1 && n % base == 0) n /= base;
  return n == 1;
}

// Draws one bit matrix for all heads, because no rule of the kernels keeps powers.
void draw_powers(const BlockRuleConfig& r, const HeadsOfRule& to, RulesOfHeads& all) {
  const auto rows = static_cast<std::int32_t>((to.context + to.block - 1) / to.block), words = (rows + 31) / 32;
  for (const std::int32_t head : to.heads)
    all.of_head[static_cast<std::size_t>(head)] = static_cast<std::int32_t>(all.rules.size());
  const auto first = static_cast<std::int64_t>(all.bits.size());
  all.rules.push_back({.kind = BlockRuleKind::drawn, .first_word = first, .rows = rows, .words = words});
  all.bits.resize(all.bits.size() + static_cast<std::size_t>(rows * words));
  for (std::int32_t q = 0; q < rows; ++q)
    for (std::int32_t k = 0; k < q; ++k)
      if (is_power(q - k, r.every)) all.bits[static_cast<std::size_t>(first + q * words + k / 32)] |= 1u << (k % 32);
}

BlockPatternKind powers() {
  return {.name = "powers",
          .settings = {"every"},
          .draw = draw_powers,
          .text = [](const BlockRuleConfig& r) { return str("powers of ", r.every); },
          .validate =
              [](const BlockRuleConfig& r, std::vector<SettingProblem>& errors) {
                if (r.every < 2) errors.push_back("every: pattern: powers needs a base of at least 2");
              }};
}

class ToyBlockPattern : public testing::Test {
 protected:
  void SetUp() override { block_patterns().push_back(powers()); }
  void TearDown() override { block_patterns().pop_back(); }

  static ModelConfig load(const std::string& rules) {
    ModelConfig c;
    load_config_text(
        c,
        "context: 4096\nkv_heads: 2\nattention: {kind: block_sparse, block: 64, heads: [1, 0], rules: " + rules + "}",
        "toy");
    return c.resolved();
  }
  static std::string refused(const std::string& rule) {
    try {
      load("[{}, " + rule + "]");
    } catch (const Error& e) {
      return e.what();
    }
    return "";
  }
};

TEST_F(ToyBlockPattern, SettingsGiveItsBlocks) {
  const ModelConfig c = load("[{local: 2}, {pattern: powers, every: 3}]");
  const Pattern p = pattern_of(c, 0);
  for (std::int32_t q = 0; q < 4096 / 64; ++q)
    for (std::int32_t k = 0; k <= q; ++k) {
      ASSERT_EQ(p.blocks->keeps(0, q, k), q == k || is_power(q - k, 3)) << q << " " << k;
      ASSERT_EQ(p.blocks->keeps(1, q, k), q - k < 2) << q << " " << k;
    }
  EXPECT_EQ(text_of(c.attention, 0), "block_sparse, blocks of 64: powers of 3");
}

TEST_F(ToyBlockPattern, SettingsAreExplainedAndChecked) {
  EXPECT_NE(refused("{pattern: powers}").find("every: pattern: powers needs a base"), std::string::npos);
  EXPECT_NE(refused("{pattern: powers, every: 2, first: 1}").find("but this is pattern: powers"), std::string::npos);
  EXPECT_NE(refused("{pattern: hierarchical, every: 2}").find("pattern: local_global, strided and powers"),
            std::string::npos);
  EXPECT_NE(describe_config<ModelConfig>().find("`powers`"), std::string::npos);
}

}  // namespace
}  // namespace ring::test
