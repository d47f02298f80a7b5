// The section `model`: values that it refuses.
#include "model/config.h"

#include <gtest/gtest.h>

#include "core/check.h"
#include "core/fields.h"
#include "model/flops.h"

namespace ring {
namespace {

std::string model_error(const std::string& yaml) {
  ModelConfig c;
  try {
    load_config_text(c, yaml, "test");
  } catch (const Error& e) {
    return e.what();
  }
  return "";
}

// The error is reported once, for the key that does not fit, with values that would fit.
TEST(ModelConfig, HeadsThatDoNotFitAreRefusedWithHeadsThatFit) {
  const std::string channels = " into multiples of 8 channels: ";
  EXPECT_EQ(model_error("{width: 128, heads: 5}"),
            "test:1: heads: 5 does not divide model.width = 128" + channels + "use 4 or 8, or set model.head_dim");
  EXPECT_EQ(model_error("{width: 128, heads: 64}"),
            "test:1: heads: 64 does not divide model.width = 128" + channels + "use 16, or set model.head_dim");
  EXPECT_EQ(model_error("{width: 12, heads: 3}"),
            "test:1: heads: 3 does not divide model.width = 12" + channels + "set model.head_dim");
  EXPECT_EQ(model_error("{width: 128, heads: 5, head_dim: 24}"), "");
  EXPECT_EQ(model_error("{head_dim: 20}"), "test:1: head_dim: 20 is not a multiple of 8. Use 16 or 24");
  EXPECT_EQ(model_error("{head_dim: 7}"), "test:1: head_dim: 7 is not a multiple of 8. Use 8");
  EXPECT_EQ(model_error("{heads: 8, kv_heads: 3}"), "test:1: kv_heads: 3 does not divide model.heads = 8. Use 2 or 4");
  EXPECT_EQ(model_error("{heads: 8, kv_heads: 9}"), "test:1: kv_heads: 9 does not divide model.heads = 8. Use 8");
}

TEST(ModelConfig, SettingsThatDoNotFitTogetherAreRefused) {
  const auto starts = [](const std::string& yaml, const std::string& message) {
    EXPECT_EQ(model_error(yaml).substr(0, message.size()), message);
  };
  starts("{norm: layer, norm_zero_centered: true}", "test:1: norm_zero_centered: requires model.norm: rms");
  starts("{attention_soft_cap: 50, attention: {kind: dilated, segments: [4], rates: [1]}}",
         "test:1: attention_soft_cap: 50, but only dense attention and windows have a soft cap");
  starts("{norm_place: reordered_attention}", "test:1: norm_place: reordered_attention requires gated delta nets");
  starts("{logit_soft_cap: 1e-30}", "test:1: logit_soft_cap: 1e-30 is below 0.001");
  starts("{layers: 2, rope_layers: [{layers: 2, rope: {theta: 100}}]}", "test:1: rope_layers[0].layers: \"2\" names");
  starts("{rope_layers: [{layers: 0, rope: {scaling: dynamic}}]}", "test:1: rope_layers[0]: layers cannot differ");
  EXPECT_EQ(model_error("{attention_soft_cap: 50, attention: {kind: window, window: 8}, qk_norm: true, "
                        "qk_norm_over: projection, norm_place: sandwich, mlp: geglu_tanh}"),
            "");
}

TEST(ModelConfig, LaterEntriesOfRopeLayersOverrideEarlierOnes) {
  ModelConfig c;
  c.rope_layers = {{"0-2", {.theta = 100}}, {"1", {.theta = 200}}};
  std::vector<double> thetas;
  for (const RopeConfig* rope : ropes_of(c)) thetas.push_back(rope->theta);
  EXPECT_EQ(thetas, (std::vector<double>{100, 200, 100, 10000}));
}

TEST(ModelConfig, NormPlaceMayDependOnTheMixer) {
  ModelConfig c;
  c.mixers = {Mixer::gated_delta_net, Mixer::attention};
  c.norm_place = NormPlace::reordered_attention;
  EXPECT_EQ(norm_place_of(c, 0), NormPlace::pre);
  EXPECT_EQ(norm_place_of(c, 1), NormPlace::reordered);
  c.norm_place = NormPlace::sandwich;
  EXPECT_EQ(norm_place_of(c, 0), NormPlace::sandwich);
}

TEST(ModelConfig, TheOutputGateCountsAsAMatrixOfEachAttentionLayer) {
  ModelConfig c;
  c.layers = 3, c.width = 64, c.heads = 4, c.head_dim = 24, c.vocab_size = 10;
  c.mixers = {Mixer::gated_delta_net, Mixer::attention, Mixer::attention};
  ModelConfig gated = c;
  gated.attention_output_gate = true;
  EXPECT_EQ(flops_per_token(gated.resolved()) - flops_per_token(c.resolved()), 6 * 2 * 64 * 4 * 24);
}

TEST(ModelConfig, RotatesAWholeNumberOfPairs) {
  EXPECT_EQ(rotary_channels({.partial_rotary_factor = 0.25}, 64), 16);
  EXPECT_EQ(rotary_channels({.partial_rotary_factor = 0.4}, 80), 32);
  EXPECT_EQ(rotary_channels({.partial_rotary_factor = 0.99}, 8), 6);
  EXPECT_EQ(rotary_channels({.partial_rotary_factor = 0}, 64), 0);
  EXPECT_EQ(rotary_channels({}, 64), 64);
}

}  // namespace
}  // namespace ring
