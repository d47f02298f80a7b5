// The attention section: values that are refused, layers that it applies to, and the patterns that it gives.
#include "model/attention/config.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "core/check.h"
#include "core/fields.h"
#include "kernels/attention/blocks.h"
#include "model/attention/kinds.h"
#include "model/config.h"
#include "model/flops.h"
#include "model/ineffective_attention.h"
#include "model/layer_names.h"
#include "model/patterns.h"

namespace ring {
namespace {

ModelConfig load(const std::string& yaml) {
  ModelConfig c;
  load_config_text(c, yaml, "test");
  return c.resolved();
}

std::string message(const std::string& yaml) {
  try {
    load(yaml);
  } catch (const Error& e) {
    return e.what();
  }
  return "";
}

void expect_refused(const std::string& attention, const std::vector<std::string>& parts) {
  const std::string got = message("attention: " + attention);
  for (const std::string& part : parts)
    EXPECT_NE(got.find(part), std::string::npos) << attention << "\n" << part << "\n" << got;
}

TEST(AttentionConfig, AcceptsEveryKind) {
  for (const char* attention :
       {"{kind: dense}", "{kind: window, window: 1}", "{kind: window, window: 64, sinks: 4}",
        "{kind: dilated, segments: [32, 128, 1000000], rates: [1, 3, 128]}",
        "{kind: dilated, segments: [32, 128], rates: [1, 4], dedup: true}", "{kind: block_sparse, rules: [{}]}",
        "{kind: block_sparse, block: 64, heads: [0, 1, 2, 3], rules: [{local: 4, first: 1, every: 8}, "
        "{pattern: strided, local: 2, every: 4}, {pattern: hierarchical, local: 2}, "
        "{pattern: random, density: 0.25, seed: 7}, {pattern: content, local: 2, first: 1, keep: 4}]}",
        "{kind: block_sparse, rules: [{pattern: content, keep: [[0, 9], [1e6, 4]], mass: 0.9}], layers_per_selection: "
        "2}",
        "{kind: block_sparse, rules: [{pattern: learned, keep: 4, mass: 0.5}, {mass: 1}], heads: [0, 1]}",
        "{kind: window, window: 8, pools: [2]}", "{kind: block_sparse, rules: [{}], pools: [16, 64, 256]}",
        "{kind: window, window: 8, pools: [2], pooling: learned}",
        "{kind: block_sparse, rules: [{}], pools: [16], pooling: learned, pool_gates: true}",
        "{kind: block_sparse, rules: [{pattern: learned, local: 2, first: 1, keep: 4}, {}], heads: [1, 0], "
        "index_heads: 8, index_head_dim: 64, index_distances: 32, index_loss: 0.5, index_warmup_steps: 1000}",
        "{kind: block_sparse, rules: [{pattern: importance, local: 2, first: 1, keep: 5, explore: 1, interval: 10, "
        "decay: 0.5, seed: 3}, {local: 2}]}"})
    EXPECT_EQ(message(str("attention: ", attention)), "");
}

// Returns the section of a file, changed by the command line.
AttentionConfig changed(const std::string& file, const std::vector<std::string>& overrides) {
  ModelConfig c;
  load_config_text(c, file, "test", overrides);
  return c.attention;
}

// A kind given on the command line does not inherit the file's settings of a different kind.
TEST(AttentionConfig, ALaterKindDropsSettingsThatOnlyOtherKindsHave) {
  const std::string file =
      "attention: {kind: block_sparse, block: 64, heads: [1, 0], index_heads: 8, pools: [16], "
      "rules: [{pattern: learned, local: 2, keep: 4}, {}]}";
  const auto given = [&](const std::vector<std::string>& overrides) { return changed(file, overrides); };
  const AttentionConfig window = given({"attention={kind: window, window: 32}"});
  EXPECT_EQ(text_of(window), "window of 32, pools of 16") << "pools are a setting of windows, too";
  EXPECT_EQ(given_settings(window).size(), 2u);
  EXPECT_EQ(given_settings(given({"attention.kind=dense"})).size(), 0u);
  EXPECT_EQ(given_settings(given({"attention.window=32", "attention.kind=window"})).size(), 2u);
  const AttentionConfig unlearned = given({"attention={rules: [{local: 2}], heads: []}"});
  EXPECT_EQ(unlearned.index_heads, AttentionConfig().index_heads);
  EXPECT_EQ(unlearned.block, 64);
  EXPECT_THROW(given({"attention={kind: window, window: 32, block: 64}"}), Error) << "given with the kind";
  EXPECT_THROW(given({"attention.window=32"}), Error) << "the kind was there before";
  ModelConfig run = load(file);  // settings that a program holds
  EXPECT_NO_THROW(override_config(run, {"attention={kind: window, window: 32}"}));
  EXPECT_THROW(override_config(run, {"attention.block=64"}), Error);
}

TEST(AttentionConfig, NamesSettingsWithoutEffect) {
  const auto idle = [](const std::string& yaml, std::int64_t longest, std::int64_t steps = 1000) {
    const std::vector<std::string> all = ineffective_attention(load(yaml), longest, steps);
    return all.size() == 1 ? all[0].substr(0, all[0].find(':')) : std::to_string(all.size());
  };
  const std::string heads = "kv_heads: 2\nattention: {kind: block_sparse, rules: [{}, {local: 2}], heads: ";
  EXPECT_EQ(idle(heads + "[0, 1]}", 256), "0");
  EXPECT_EQ(idle(heads + "[0, 1, 0]}", 256), "model.attention.heads");
  const std::string pools = "attention_layers: [{layers: '1', attention: {kind: window, window: 8, pools: [16, 64]}}]";
  EXPECT_EQ(idle(pools, 65), "0") << "the last token sees the first pool";
  EXPECT_EQ(idle(pools, 64), "model.attention_layers[0].attention.pools");
  const std::string learned =
      "attention: {kind: block_sparse, block: 64, rules: [{}, {pattern: learned, local: 2, first: 1, keep: 4}]}";
  EXPECT_EQ(idle(learned, 4 * 64 + 1), "0");
  EXPECT_EQ(idle(learned, 4 * 64), "model.attention.rules[1].keep");
  EXPECT_EQ(idle(learned, 3 * 64), "model.attention.rules[1]");
  for (const std::string pattern : {"content", "importance"}) {
    const std::string rule = "attention: {kind: block_sparse, block: 64, rules: [{pattern: " + pattern + ", keep: ";
    EXPECT_EQ(idle(rule + "4}]}", 4 * 64 + 1), "0") << pattern;
    EXPECT_EQ(idle(rule + "5}]}", 4 * 64 + 1), "model.attention.rules[0].keep") << pattern;
  }
  const std::string less = "attention: {kind: block_sparse, block: 64, rules: [{pattern: content, keep: [[0, 64], ";
  EXPECT_EQ(idle(less + "[1000, 4]]}]}", 5 * 64), "0") << "fewer later on";
  EXPECT_EQ(idle(less + "[1000, 5]]}]}", 5 * 64), "model.attention.rules[0].keep");
  const std::string warm =
      "attention: {kind: block_sparse, block: 64, rules: [{pattern: learned, keep: 4}], index_warmup_steps: 50}";
  EXPECT_EQ(idle(warm, 512, 51), "0");
  EXPECT_EQ(idle(warm, 512, 50), "model.attention.index_warmup_steps");
  const std::string choice =
      "attention: {kind: block_sparse, block: 64, rules: [{}, {pattern: importance, keep: 4, interval: 50}]}";
  EXPECT_EQ(idle(choice, 512, 51), "0");
  EXPECT_EQ(idle(choice, 512, 50), "model.attention.rules[1].interval");
}

TEST(AttentionConfig, ALaterPatternDropsSettingsThatOnlyOtherPatternsHave) {
  const std::string file =
      "attention: {kind: block_sparse, rules: [{local: 2, first: 1, every: 4}, {pattern: random, local: 2, density: "
      "0.5, seed: 3}, {pattern: content, keep: [[0, 64], [1000, 16]]}]}";
  const auto given = [&](const std::vector<std::string>& overrides) { return text_of(changed(file, overrides)); };
  EXPECT_NE(given({"attention.rules[0].pattern=hierarchical"}).find("rule 0: hierarchical, local 2;"),
            std::string::npos);
  EXPECT_NE(
      given({"attention.rules[0]={pattern: content, keep: 5}"}).find("rule 0: content, local 2, first 1, keep 5;"),
      std::string::npos)
      << "local and first are settings of both";
  EXPECT_NE(given({"attention.rules[1].pattern=strided", "attention.rules[1].every=8"})
                .find("rule 1: strided, local 2, every 8;"),
            std::string::npos);
  EXPECT_TRUE(given({"attention.rules[2]={pattern: random, density: 0.5}"})
                  .ends_with("rule 2: random, local 1, density 0.5, seed 0"));
  EXPECT_THROW(given({"attention.rules[0]={pattern: hierarchical, every: 2}"}), Error) << "given with the pattern";
  EXPECT_THROW(given({"attention.rules[0].keep=4"}), Error) << "the pattern was there before";
  EXPECT_THROW(given({"attention.rules[0].pattern=content"}), Error) << "it has no keep";
  ModelConfig run = load(file);  // settings that a program holds
  EXPECT_NO_THROW(override_config(run, {"attention.rules[2].pattern=hierarchical"}));
  ModelConfig important = load(
      "attention: {kind: block_sparse, rules: [{pattern: importance, keep: 9, explore: 1, interval: 10, decay: 0.5}]}");
  override_config(important, {"attention.rules[0].pattern=content"});
  EXPECT_TRUE(text_of(important.attention).ends_with(": content, local 1, first 0, keep 9"));
  EXPECT_EQ(important.attention.rules[0].interval, BlockRuleConfig().interval);
}

// A setting that a kind lists but that does not exist would have no effect, and neither would a setting that no kind
// reads.
TEST(AttentionConfig, KindsReadAllSettingsThatExist) {
  AttentionConfig c;
  for (const config::Field& field : bind_config(c).fields) {
    EXPECT_FALSE(field.text.empty()) << field.name;
    EXPECT_EQ(kinds_that_read(field.name).empty(), field.name == "kind") << field.name;
  }
  for (const AttentionKind& kind : attention_kinds())
    for (const auto& [setting, meaning] : kind.settings) {
      const auto is_it = [&](const config::Field& f) { return f.name == setting; };
      EXPECT_TRUE(std::ranges::any_of(bind_config(c).fields, is_it)) << kind.name << " " << setting;
    }
}

TEST(AttentionConfig, IsDescribedInWords) {
  const auto text = [](const std::string& attention, std::optional<std::int64_t> head = {}) {
    return text_of(load("attention: " + attention).attention, head);
  };
  EXPECT_EQ(text("{}"), "dense");
  EXPECT_EQ(text("{kind: window, window: 64}"), "window of 64");
  EXPECT_EQ(text("{kind: window, window: 64, sinks: 2}"), "window of 64, 2 sinks");
  EXPECT_EQ(text("{kind: dilated, segments: [8, 16], rates: [1, 2], dedup: true}"),
            "dilated, segments 8, 16, rates 1, 2, dedup");
  const std::string blocks = "{kind: block_sparse, rules: [{}, {pattern: strided, every: 2}], heads: [0, 1]}";
  EXPECT_EQ(text(blocks),
            "block_sparse, blocks of 128; rule 0: local_global, local 1, first 0; rule 1: strided, local "
            "1, every 2; rules of heads 0, 1");
  EXPECT_EQ(text(blocks, 3), "block_sparse, blocks of 128: strided, local 1, every 2");
  EXPECT_EQ(text("{kind: block_sparse, block: 64, rules: [{pattern: content, keep: 4}]}"),
            "block_sparse, blocks of 64: content, local 1, first 0, keep 4");
  EXPECT_EQ(text("{kind: block_sparse, block: 64, rules: [{pattern: content, keep: 4, mass: 0.9}]}"),
            "block_sparse, blocks of 64: content, local 1, first 0, keep at most 4, mass 0.9");
  EXPECT_EQ(text("{kind: block_sparse, block: 64, rules: [{pattern: content, keep: [[0, 9], [1e6, 4]]}], "
                 "layers_per_selection: 3}"),
            "block_sparse, blocks of 64, selected once in 3 layers: content, local 1, first 0, keep 9 to 4");
  EXPECT_EQ(text("{kind: window, window: 64, pools: [16, 128]}"), "window of 64, pools of 16, 128");
  EXPECT_EQ(text("{kind: window, window: 64, pools: [16], pooling: learned}"), "window of 64, learned pools of 16");
  EXPECT_EQ(text("{kind: window, window: 64, pools: [16], pool_gates: true}"), "window of 64, gated pools of 16");
  const std::string pooling = "{kind: block_sparse, rules: [{}], pools: [64]}";
  EXPECT_EQ(text(pooling), "block_sparse, blocks of 128: local_global, local 1, first 0, pools of 64");
  EXPECT_EQ(text(pooling, 0), text(pooling));
  EXPECT_EQ(text("{kind: block_sparse, block: 64, rules: [{pattern: importance, keep: 4, explore: 1}]}"),
            "block_sparse, blocks of 64: importance, local 1, first 0, keep 4, explore 1, interval 200, decay 0.9");
}

TEST(AttentionConfig, RefusesKeysOfADifferentKind) {
  expect_refused("{window: 8}", {"attention: window: 8 applies to kind: window", "kind: dense"});
  expect_refused("{kind: dilated, segments: [8], rates: [1], sinks: 2}", {"sinks: 2 applies to kind: window"});
  expect_refused("{kind: window, window: 8, segments: [8, 16]}", {"segments: [8, 16] applies to kind: dilated"});
  expect_refused("{kind: window, window: 8, rates: [1]}", {"rates: [1] applies to kind: dilated"});
  expect_refused("{dedup: true}", {"dedup: true applies to kind: dilated"});
  expect_refused("{block: 64}", {"block: 64 applies to kind: block_sparse"});
  expect_refused("{rules: [{}]}", {"rules: a list of 1 applies to kind: block_sparse"});
  expect_refused("{heads: [0, 0]}", {"heads: [0, 0] applies to kind: block_sparse"});
  expect_refused("{layers_per_selection: 2}", {"layers_per_selection: 2 applies to kind: block_sparse"});
  expect_refused("{kind: block_sparse, rules: [{local: 2}], layers_per_selection: 2}",
                 {"layers_per_selection: 2", "no rule selects", "pattern: content"});
  expect_refused("{kind: block_sparse, rules: [{pattern: content, keep: [[0, 4], [9, 2]]}, {pattern: file, file: a}]}",
                 {"rules: a keep that changes", "pattern: file"});
  expect_refused("{pools: [16]}", {"pools: [16] applies to kind: window and block_sparse", "kind: dense"});
  expect_refused("{kind: dilated, segments: [8], rates: [1], pools: [4]}",
                 {"pools: [4] applies to kind: window and block_sparse", "kind: dilated", "Leave pools out"});
}

TEST(AttentionConfig, RefusesValuesWithoutAPattern) {
  expect_refused("{kind: window}", {"window: expected at least 1"});
  expect_refused("{kind: window, window: -3}", {"attention.window", "-3"});
  expect_refused("{kind: dilated}", {"segments: [] and rates: [] must"});
  expect_refused("{kind: dilated, segments: [8, 16], rates: [1]}", {"segments: [8, 16] and rates: [1] must"});
  expect_refused("{kind: dilated, segments: [8, 16], rates: [2, 4]}", {"rates: expected 1"});
  expect_refused("{kind: dilated, segments: [8, 16], rates: [1, 17]}", {"rates: 17", "segment of 16"});
  expect_refused("{kind: dilated, segments: [8, 16], rates: [1, 3], dedup: true}",
                 {"dedup: requires", "3 does not divide 16"});
  expect_refused("{kind: dilated, segments: [8, 12], rates: [1, 2], dedup: true}",
                 {"dedup: requires", "segment 8 and rate 1", ", 12 and"});
  expect_refused("{kind: dilated, segments: [12, 24, 48], rates: [1, 2, 3], dedup: true}", {"segment 24 and rate 2"});
  expect_refused("{kind: block_sparse}", {"rules: kind: block_sparse needs"});
  expect_refused("{kind: block_sparse, block: 96, rules: [{}]}", {"block: expected 64 or 128 tokens, got 96"});
  expect_refused("{kind: block_sparse, rules: [{}], heads: [0, 1]}", {"heads: rule 1 does not exist"});
  expect_refused("{kind: window, window: 8, pools: [16, 16]}", {"pools: [16, 16]: sizes must increase"});
  expect_refused("{kind: block_sparse, rules: [{}], pools: [64, 16]}", {"pools: [64, 16]: sizes must increase"});
  expect_refused("{kind: window, window: 8, pooling: learned}",
                 {"pooling: learned applies to sections", "Leave pooling out"});
  expect_refused("{kind: window, window: 8, pool_gates: true}",
                 {"pool_gates: true applies to sections", "Leave pool_gates out"});
  expect_refused("{kind: window, window: 8, pools: [1]}", {"attention.pools", "1", "2"});
}

TEST(AttentionConfig, RefusesDropoutOnWeightsWithPools) {
  const std::string pools = "{kind: window, window: 8, pools: [16]}";
  for (const std::string& section :
       {"attention: " + pools, "attention_layers: [{layers: 0, attention: " + pools + "}]"}) {
    EXPECT_NE(message("attention_dropout: 0.1\n" + section).find("attention_dropout: 0.1, but attention with pools"),
              std::string::npos)
        << section;
    EXPECT_EQ(message("dropout: 0.1\n" + section), "");
  }
}

TEST(AttentionConfig, RefusesRulesWithoutAPattern) {
  const auto refused = [](const std::string& rule, const std::string& part, std::vector<std::string> more = {}) {
    more.push_back("attention.rules[1]: " + part);
    expect_refused("{kind: block_sparse, rules: [{}, " + rule + "]}", more);
  };
  refused("{pattern: strided}", "every: expected", {"pattern: strided"});
  refused("{pattern: strided, every: 2, first: 1}",
          "first: 1 applies to pattern: local_global, content, learned and importance");
  refused("{pattern: hierarchical, every: 2}", "every: 2 applies to pattern: local_global and strided");
  refused("{pattern: random}", "density: expected", {"pattern: random"});
  refused("{pattern: file, file: a.txt, local: 3}", "local: 3 applies to");
  refused("{density: 0.5}", "density: 0.5 applies to pattern: random");
  refused("{seed: 5}", "seed: 5 applies to pattern: random and importance");
  refused("{pattern: file}", "file: expected the path");
  refused("{file: a.txt}", "file: a.txt applies to pattern: file");
  refused("{keep: 4}", "keep: 4 applies to pattern: content, learned and importance", {"pattern: local_global"});
  refused("{pattern: content, keep: 9, density: 0.5}", "density: 0.5 applies to pattern: random");
  refused("{pattern: content, keep: [[0, 9], [100, 2]], local: 2}", "keep: 2, but pattern: content needs more",
          {"= 2 blocks"});
  for (const std::string pattern : {"content", "learned", "importance"})
    refused("{pattern: " + pattern + "}", "keep: missing, or 0, but pattern: " + pattern, {"= 1 blocks"});
  refused("{pattern: content, local: 2, first: 1, keep: 3}", "keep: 3, but pattern: content needs more",
          {"= 3 blocks", "Set it to 4", "pattern: local_global"});
  refused("{pattern: importance, keep: 1}", "keep: 1, but pattern: importance needs more", {"= 1 blocks"});
  refused("{pattern: importance, local: 2, first: 1, keep: 5, explore: 2}", "explore: 2 blocks",
          {"keep: 5 only 2", "Set explore to 1", "raise keep"});
  refused("{pattern: importance, local: 2, first: 1, keep: 4, explore: 1}", "explore: 1 blocks",
          {"keep: 4 only 1", "Leave explore out", "raise keep"});
  refused("{pattern: importance, keep: 4, density: 0.5}", "density: 0.5 applies to pattern: random");
  refused("{mass: 0.9}", "mass: 0.9 applies to pattern: content and learned", {"pattern: local_global"});
  refused("{pattern: importance, keep: 4, mass: 0.9}", "mass: 0.9 applies to pattern: content and learned");
  refused("{pattern: content, keep: 4, mass: 0}", "mass: expected a share above 0, got 0.", {"such as 0.9"});
  refused("{pattern: content, keep: 4, mass: 1e-60}", "mass: expected a share above 0, got 1e-60");
  for (const char* mass : {"1.5", "-0.1", "nan"})
    expect_refused(str("{kind: block_sparse, rules: [{pattern: content, keep: 4, mass: ", mass, "}]}"), {"mass", mass});
  refused("{explore: 1}", "explore: 1 applies to pattern: importance");
  refused("{pattern: content, keep: 4, interval: 7}", "interval: 7 applies to pattern: importance");
  refused("{pattern: random, density: 0.5, decay: 0.5}", "decay: 0.5 applies to pattern: importance");
  expect_refused("{kind: block_sparse, rules: [{pattern: importance, keep: 4}, {pattern: content, keep: 4}]}",
                 {"rules: pattern: importance cannot be combined"});
}

TEST(AttentionConfig, AllowsIndexersOnlyForLearnedRules) {
  expect_refused("{kind: block_sparse, rules: [{}, {pattern: learned, keep: 4}], index_heads: 2}",
                 {"index_heads: 2 applies to rules with pattern: learned"});
  expect_refused("{kind: block_sparse, rules: [{local: 4}], index_distances: 8}",
                 {"index_distances: 8 applies to rules with pattern: learned"});
  expect_refused("{kind: block_sparse, rules: [{pattern: learned, keep: 4}], index_distances: 65}",
                 {"index_distances", "65"});
  expect_refused("{kind: window, window: 4, index_loss: 2}", {"index_loss: 2 applies to kind: block_sparse"});
  expect_refused(
      "{kind: block_sparse, rules: [{pattern: learned, keep: 4}, {pattern: content, keep: 4}], heads: [0, 1]}",
      {"rules: pattern: content and pattern: learned cannot be combined"});
  expect_refused("{kind: block_sparse, rules: [{pattern: learned, keep: 4}], index_heads: 17}", {"index_heads", "17"});
  expect_refused("{kind: block_sparse, rules: [{pattern: learned, local: 4, keep: 4}]}",
                 {"keep: 4, but pattern: learned needs more", "= 4 blocks"});
}

TEST(LayersNamed, ReadsNumbersRangesAndSteps) {
  using Layers = std::vector<std::int64_t>;
  EXPECT_EQ(parse_layer_list("0,4-7", 8), (Layers{0, 4, 5, 6, 7}));
  EXPECT_EQ(parse_layer_list(" 2 , 1 - 1", 8), (Layers{2, 1}));
  EXPECT_EQ(parse_layer_list("every 4 from 3", 12), (Layers{3, 7, 11}));
  EXPECT_EQ(parse_layer_list("every 3, 1", 7), (Layers{0, 3, 6, 1}));
  for (const char* bad : {"", " ", "a", "1,,2", "-1", "3-1", "every", "every 0", "every 2 from", "every 2 from 9",
                          "all", "1.5", "8", "5-8", "99999999999999999999"})
    EXPECT_THROW(parse_layer_list(bad, 8), Error) << bad;
}

TEST(LayersNamed, TextsNameTheirLayers) {
  EXPECT_EQ(layers_text({0, 4, 5, 6, 7}), "0,4-7");
  EXPECT_EQ(layers_text({3}), "3");
  for (unsigned bits = 1; bits < 256; ++bits) {
    std::vector<std::int64_t> layers;
    for (std::int64_t i = 0; i < 8; ++i)
      if (bits >> i & 1) layers.push_back(i);
    EXPECT_EQ(parse_layer_list(layers_text(layers), 8), layers);
  }
}

TEST(LayersNamed, EnormousTextsAreRefusedOrCheap) {
  EXPECT_THROW(parse_layer_list(std::string(100'000, ' '), 8), Error);  // a regular expression would overflow the stack
  EXPECT_THROW(parse_layer_list("0" + std::string(100'000, '-'), 8), Error);
  std::string all;
  for (int i = 0; i < 500; ++i) all += "0-9998,";
  EXPECT_EQ(parse_layer_list(all, 10'000).size(), 9999u) << "each layer once";
}

const char* kMixed = R"(
layers: 6
heads: 8
kv_heads: 4
attention: {kind: window, window: 16}
attention_layers:
- layers: every 2 from 1
  attention: {kind: dilated, segments: [8, 32], rates: [1, 4], dedup: true}
- layers: 3-4
  attention: {kind: block_sparse, block: 64, rules: [{local: 2}, {pattern: strided, every: 3}], heads: [0, 1, 1]}
- layers: 5
  attention: {kind: dense}
)";

TEST(AttentionLayers, TheLastEntryForALayerWins) {
  const ModelConfig c = load(kMixed);
  const std::vector<std::string> want = {"window", "dilated", "window", "block_sparse", "block_sparse", "dense"};
  const std::vector<Pattern> patterns = patterns_of(c);
  ASSERT_EQ(patterns.size(), 6u);
  for (std::int64_t i = 0; i < 6; ++i) {
    const Pattern& p = patterns[static_cast<std::size_t>(i)];
    EXPECT_EQ(attention_of(c, i).kind, want[static_cast<std::size_t>(i)]) << i;
    EXPECT_TRUE(same_pairs(pattern_of(c, i), p)) << i;
    EXPECT_TRUE(p.causal);
    EXPECT_EQ(p.blocks != nullptr, want[static_cast<std::size_t>(i)] == "block_sparse");
    EXPECT_NO_THROW(check(p, "test"));
  }
  EXPECT_EQ(patterns[0].branches, (std::vector<Branch>{{.window = 16}}));
  EXPECT_TRUE(patterns[5].is_dense());
  EXPECT_EQ(patterns[1].branches, (std::vector<Branch>{{8, 1}, {32, 4}}));
  EXPECT_TRUE(patterns[1].dedup);
  EXPECT_EQ(patterns[1].shift, 4);  // layer times KV heads
}

TEST(AttentionLayers, HaveTheirOwnPools) {
  const ModelConfig c = load(
      "{layers: 2, attention: {kind: window, window: 8}, attention_layers: [{layers: 1, attention: {kind: window, "
      "window: 8, pools: [4, 32]}}]}");
  const std::vector<Pattern> patterns = patterns_of(c);
  EXPECT_TRUE(patterns[0].pools.empty());
  EXPECT_EQ(patterns[1].pools, (std::vector<std::int32_t>{4, 32}));
  EXPECT_EQ(patterns_of(c, {1, 2})[1].pools, patterns[1].pools);
  EXPECT_FALSE(same_pairs(patterns[0], patterns[1]));
}

TEST(AttentionLayers, LayersOfASectionShareTheirBlocks) {
  const std::vector<Pattern> patterns = patterns_of(load(kMixed));
  EXPECT_EQ(patterns[3].blocks, patterns[4].blocks);
  const BlockPattern& blocks = *patterns[3].blocks;
  EXPECT_EQ(blocks.block(), 64);
  EXPECT_EQ(blocks.rule(0).kind, BlockRuleKind::local_global);
  EXPECT_EQ(blocks.rule(0).local, 2);
  for (int head : {1, 2}) EXPECT_EQ(blocks.rule(head).every, 3) << head;
  EXPECT_EQ(blocks.rule(3).kind, BlockRuleKind::local_global);
}

TEST(AttentionLayers, ReadBlocksFromAFile) {
  const std::string path = testing::TempDir() + str("blocks-", ::getpid(), ".txt");
  std::ofstream(path) << "0-3: 0\nhead 3\n0-3: 1\n";
  const std::string section =
      "kv_heads: 4\nattention: {kind: block_sparse, block: 64, heads: [0, 1], rules: [{local: 9}, "
      "{pattern: file, file: " +
      path + "}]}\n";
  const Pattern p = pattern_of(load("context: 256\n" + section), 0);
  for (int head : {0, 2}) EXPECT_TRUE(p.blocks->keeps(head, 3, 2)) << head;
  EXPECT_TRUE(p.blocks->keeps(1, 3, 0));
  EXPECT_FALSE(p.blocks->keeps(1, 3, 1));
  EXPECT_TRUE(p.blocks->keeps(3, 3, 1));
  EXPECT_FALSE(p.blocks->keeps(3, 3, 0));
  EXPECT_THROW(patterns_of(load("context: 257\n" + section)), Error);  // one block more than the file has
  std::filesystem::remove(path);
  EXPECT_THROW(patterns_of(load("context: 256\n" + section)), Error);
}

TEST(AttentionLayers, ShiftTheSamplesFromLayerToLayer) {
  const ModelConfig c = load("{layers: 3, heads: 4, attention: {kind: dilated, segments: [8, 9], rates: [1, 2]}}");
  for (std::int64_t i = 0; i < 3; ++i) EXPECT_EQ(pattern_of(c, i).shift, 4 * i);
}

TEST(AttentionLayers, RefusesLayersThatDoNotExist) {
  const std::string got = message(
      "{layers: 4, attention_layers: [{layers: 0-3, attention: {}}, {layers: 2-4, attention: {}}, {layers: odd, "
      "attention: {}}]}");
  EXPECT_NE(got.find("attention_layers[1].layers: \"2-4\""), std::string::npos) << got;
  EXPECT_NE(got.find("there are 4"), std::string::npos) << got;
  EXPECT_NE(got.find("attention_layers[2].layers: \"odd\" names no layers"), std::string::npos) << got;
  EXPECT_EQ(got.find("attention_layers[0]"), std::string::npos) << got;
  EXPECT_NE(message("{layers: 4, attention_layers: [{attention: {}}]}").find("attention_layers[0].layers"),
            std::string::npos);
  EXPECT_NE(message("{layers: 4, attention_layers: [{layers: 1, attention: {window: 2}}]}")
                .find("attention_layers[0].attention: window: 2 applies to"),
            std::string::npos);
}

TEST(AttentionConfig, PrintedSettingsAreReadBack) {
  ModelConfig c, back;
  load_config_text(c, kMixed, "test");
  load_config_text(back, to_yaml(c), "printed");
  EXPECT_EQ(to_yaml(back), to_yaml(c));
  EXPECT_NE(to_yaml(c), to_yaml(ModelConfig{}));
}

// One layer of the kind sees 128 tokens. The pairs are counted by hand.
TEST(FlopsPerToken, CountsKeptPairs) {
  const auto attention = [](const std::string& section) {
    const std::string shape = "vocab_size: 64\ncontext: 128\nlayers: 2\nheads: 4\nkv_heads: 2\nhead_dim: 8\n";
    const ModelConfig c = load(shape + "attention_layers: [{layers: 1, attention: " + section + "}]");
    const ModelConfig dense = load(shape);
    const double all = 128 * 129 / 2, unit = 12 * 4 * 8 / 128.0;
    return (flops_per_token(c) - flops_per_token(dense)) / unit + all;
  };
  EXPECT_NEAR(attention("{kind: dense}"), 128 * 129 / 2, 1e-6);
  EXPECT_NEAR(attention("{kind: window, window: 16}"), 16 * 17 / 2 + 112 * 16, 1e-6);
  EXPECT_NEAR(attention("{kind: window, window: 16, sinks: 1}"), 16 * 17 / 2 + 112 * 17, 1e-6);
  // There are 8 whole segments of 16, and 32 samples of the whole row.
  EXPECT_NEAR(attention("{kind: dilated, segments: [16, 128], rates: [1, 4]}"), 8 * 16 * 17 / 2 + 32 * 33 / 2, 1e-6);
  EXPECT_NEAR(attention("{kind: dilated, segments: [16, 128], rates: [1, 4], dedup: true}"),
              8 * 16 * 17 / 2 + 32 * 33 / 2 - 8 * 4 * 5 / 2, 1e-6);
  EXPECT_NEAR(attention("{kind: block_sparse, block: 64, rules: [{}]}"), 2 * 64 * 65 / 2, 1e-6);
  // Queries 32 .. 63 see one pool of 32, queries 64 .. 95 two and queries 96 .. 127 three. Of the pools of 100 tokens,
  // there is one.
  EXPECT_NEAR(attention("{kind: window, window: 16, pools: [32, 100]}"), 16 * 17 / 2 + 112 * 16 + 32 * 6 + 28, 1e-6);
  // One of two KV heads sees all keys.
  EXPECT_NEAR(attention("{kind: block_sparse, block: 64, rules: [{}, {local: 2}], heads: [1, 0]}"),
              64 * 65 + 64 * 64 / 2, 1e-6);
  const ModelConfig c = load("{vocab_size: 64, context: 128, layers: 2, width: 32, heads: 4, mlp: gelu}");
  const double weights = 2 * (4 * 32 * 32 + 2 * 32 * 128) + 64 * 32;
  EXPECT_NEAR(flops_per_token(c), 6 * weights + 12 * 2 * 32 * 129 / 2.0, 1e-6);
  EXPECT_NEAR(flops_per_token(c, 32), 6 * weights + 12 * 2 * 32 * 33 / 2.0, 1e-6) << "in sequences of 32 tokens";
}

}  // namespace
}  // namespace ring
