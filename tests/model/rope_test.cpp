// Frequencies of rotary positions with every scaling, and sequences that dynamic scaling stretches.
#include "model/rope.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "core/fields.h"
#include "core/philox.h"
#include "model/decoder.h"
#include "tests/error_of.h"

namespace ring {
namespace {

TEST(Rope, ScalesFrequenciesAsDefined) {
  RopeConfig c;
  c.theta = 500000;
  const std::vector<float> plain = rope_frequencies(c, 128);
  ASSERT_EQ(plain.size(), 64u);
  EXPECT_FLOAT_EQ(plain[0], 1.0f);
  EXPECT_NEAR(plain[32], std::pow(500000.0, -0.5), 1e-9);
  c.scaling = RopeScaling::linear;
  c.factor = 4;
  EXPECT_FLOAT_EQ(rope_frequencies(c, 128)[10], plain[10] / 4);
  c.scaling = RopeScaling::llama3;
  c.factor = 8;
  const std::vector<float> llama = rope_frequencies(c, 128);
  EXPECT_FLOAT_EQ(llama[0], plain[0]);        // wavelength of 6 tokens: kept
  EXPECT_FLOAT_EQ(llama[63], plain[63] / 8);  // wavelength beyond the trained context: divided
  for (std::size_t i = 0; i < 64; ++i) {
    EXPECT_LE(llama[i], plain[i] * 1.0000001f);
    EXPECT_GE(llama[i], plain[i] / 8 * 0.9999999f);
  }
}

// Expected values are those of _compute_yarn_parameters of transformers 5.23 for Qwen's context of 131,072 tokens.
TEST(Rope, YarnEqualsThatOfTransformers) {
  const RopeConfig c{.theta = 1e6, .scaling = RopeScaling::yarn, .factor = 4, .original_context = 32768};
  const std::vector<float> f = rope_frequencies(c, 128);
  const std::pair<std::size_t, double> known[] = {{0, 1.0},
                                                  {20, 0.01333521492779255},
                                                  {23, 0.006978305988013744},
                                                  {24, 0.005375321488827467},
                                                  {30, 0.00106436096},
                                                  {35, 0.0002462583943270147},
                                                  {40, 4.4456985051510856e-5},
                                                  {63, 3.102344408034696e-7}};
  for (const auto& [i, value] : known) EXPECT_NEAR(f[i] / value, 1, 1e-6) << i;
  EXPECT_NEAR(rope_attention_factor(c), 1.138629436111989, 1e-12);
  EXPECT_EQ(rope_attention_factor({.scaling = RopeScaling::linear}), 1);
}

// Expected values are those of _compute_dynamic_ntk_parameters of transformers 5.23 for a context of 4096.
TEST(Rope, DynamicEqualsThatOfTransformers) {
  const RopeConfig c{.scaling = RopeScaling::dynamic, .factor = 2, .original_context = 4096};
  const auto expect = [&](std::int64_t length, const std::vector<double>& known) {
    const std::vector<float> f = rope_frequencies(c, 128, length);
    const std::size_t at[] = {0, 1, 20, 40, 63};
    for (std::size_t i = 0; i < 5; ++i) EXPECT_NEAR(f[at[i]] / known[i], 1, 1e-6) << length << " " << at[i];
  };
  expect(5000, {1, 0.8609532713890076, 0.05007161945104599, 0.002507166936993599, 8.011495810933411e-05});
  expect(16384, {1, 0.8396257758140564, 0.030319001525640488, 0.0009192419238388538, 1.649688601901289e-05});
  EXPECT_EQ(rope_frequencies(c, 128, 4096), rope_frequencies({}, 128));
}

constexpr std::int64_t kTrained = 12, kHeadDim = 8;

ModelConfig stretching() {
  ModelConfig c;
  c.vocab_size = 37;
  c.context = kTrained;
  c.layers = 2;
  c.width = 32;
  c.init_std = 0.3;
  c.qk_norm = true;
  c.rope = {.theta = 100, .scaling = RopeScaling::dynamic, .factor = 3, .original_context = kTrained};
  return c;
}

struct Model {
  explicit Model(const ModelConfig& c) : decoder(c) { decoder.allocate(ctx, 7); }

  // Returns the logits [tokens, vocabulary] of documents with these lengths, one after the other.
  std::vector<float> logits(const std::vector<std::int64_t>& lengths, std::uint64_t first_id = 0) const {
    Sequences seqs;
    seqs.offsets = {0};
    std::vector<std::int32_t> ids, positions;
    for (const std::int64_t length : lengths) {
      for (std::int32_t t = 0; t < length; ++t) {
        ids.push_back(static_cast<std::int32_t>(random_bits({9, 4, 1}, first_id + ids.size()) % 37));
        positions.push_back(t);
      }
      seqs.offsets.push_back(static_cast<std::int32_t>(ids.size()));
    }
    seqs.positions = from_host(positions, ctx.stream);
    ring::Run run{ctx};
    const Tensor out = decoder.logits(run, decoder.hidden(run, from_host(ids, ctx.stream), seqs).value);
    return to_host<float>(out.view({out.numel()}), ctx.stream);
  }

  ExecContext ctx{Stream::cpu(2)};
  Decoder decoder;
};

TEST(DynamicRope, ChangesNothingWithinTheContext) {
  ModelConfig plain = stretching();
  plain.rope = {.theta = 100};
  EXPECT_EQ(Model(stretching()).logits({kTrained, 5}), Model(plain).logits({kTrained, 5}));
}

// Beyond the context, a sequence gives the logits of a model with a larger theta.
TEST(DynamicRope, RaisesThetaWithTheLength) {
  ModelConfig raised = stretching();
  const double times = 3 * 30.0 / 12 - 2;
  raised.rope = {.theta = 100 * std::pow(times, 8.0 / 6)};
  const std::vector<float> got = Model(stretching()).logits({30}), want = Model(raised).logits({30});
  ASSERT_EQ(got.size(), 30u * 37);
  for (std::size_t i = 0; i < got.size(); ++i) EXPECT_NEAR(got[i], want[i], 1e-4) << i;
  ModelConfig plain = stretching();
  plain.rope = {.theta = 100};
  EXPECT_GT(std::abs(Model(plain).logits({30}).back() - got.back()), 1e-3);
}

TEST(DynamicRope, DependsOnEachDocumentsLength) {
  const Model m(stretching());
  const std::vector<float> all = m.logits({20, 7, 31});
  std::vector<float> alone;
  std::uint64_t first = 0;
  for (const std::int64_t length : {20, 7, 31}) {
    const std::vector<float> one = m.logits({length}, first);
    alone.insert(alone.end(), one.begin(), one.end());
    first += static_cast<std::uint64_t>(length);
  }
  ASSERT_EQ(all.size(), alone.size());
  for (std::size_t i = 0; i < all.size(); ++i) EXPECT_NEAR(all[i], alone[i], 1e-5) << i;
}

// Rows of padding belong to the document before them, but do not make it longer.
TEST(DynamicRope, DoesNotCountPadding) {
  const ExecContext ctx{Stream::cpu(1)};
  const std::vector<std::int32_t> positions(32, 0);
  const Tensor p = from_host(positions, ctx.stream);
  const RopeConfig c = stretching().rope;
  const Sequences within = Sequences::packed({0, 16}, {12, 10}, 16, p),
                  beyond = Sequences::packed({0, 16}, {13, 10}, 16, p);
  EXPECT_FALSE(stretched_frequencies(c, kHeadDim, within, {}, ctx).defined());
  EXPECT_TRUE(stretched_frequencies(c, kHeadDim, within, {0, 3}, ctx).defined());  // a cache holds more tokens
  const std::vector<float> got =
      to_host<float>(stretched_frequencies(c, kHeadDim, beyond, {}, ctx).view({8}), ctx.stream);
  std::vector<float> want = rope_frequencies(c, kHeadDim, 13);
  const std::vector<float> second = rope_frequencies(c, kHeadDim);
  want.insert(want.end(), second.begin(), second.end());
  EXPECT_EQ(got, want);
}

TEST(DynamicRope, HasNoBackwardBeyondTheContext) {
  const Model m(stretching());
  Tape tape;
  ring::Run run{m.ctx, &tape};
  const Tensor ids = from_host(std::vector<std::int32_t>(13, 1), m.ctx.stream);
  const Sequences seqs = Sequences::uniform(1, 13, m.ctx);
  EXPECT_THROW(m.decoder.hidden(run, ids, seqs), Error);
}

// The forward of a checkpointed segment is not recorded, but its recomputation in the backward would be.
TEST(DynamicRope, HasNoSegmentsBeyondTheContext) {
  Model m(stretching());
  ActivationPlan plan = ActivationPlan::uniform(2, Recompute::none);
  plan.segments = plan.segment_blocks = 1;
  m.decoder.set_activations(plan);
  Tape tape;
  ring::Run run{m.ctx, &tape};
  const Tensor ids = from_host(std::vector<std::int32_t>(kTrained + 1, 1), m.ctx.stream);
  const auto run_segment = [&](std::int64_t tokens) {
    return m.decoder.run_part(run, {0, 1}, {}, ids.narrow(0, 0, tokens), Sequences::uniform(1, tokens, m.ctx));
  };
  EXPECT_TRUE(run_segment(kTrained).slot);
  const std::string refusal = error_of([&] { run_segment(kTrained + 1); });
  EXPECT_NE(refusal.find("dynamic has no backward"), std::string::npos) << refusal;
}

TEST(Rope, OnlyRotaryPositionsAreScaled) {
  for (const Positions positions : {Positions::learned, Positions::none}) {
    ModelConfig c = stretching();
    c.positions = positions;
    std::vector<SettingProblem> errors;
    c.validate(errors);
    ASSERT_EQ(errors.size(), 1u);
    EXPECT_NE(errors[0].text.find("rope.scaling: requires model.positions: rope"), std::string::npos) << errors[0].text;
  }
}

TEST(Rope, KeysWithoutEffectAreRefused) {
  const auto problems = [](const RopeConfig& c) {
    std::vector<SettingProblem> errors;
    c.validate(errors);
    std::string keys;
    for (const SettingProblem& p : errors) keys += p.text.substr(0, p.text.find(':')) + ' ';
    return keys;
  };
  EXPECT_EQ(problems({.theta = 5e5}), "");
  EXPECT_EQ(problems({.factor = 4, .original_context = 128}), "factor original_context ");
  EXPECT_EQ(problems({.scaling = RopeScaling::linear, .factor = 4, .beta_slow = 2}), "beta_slow ");
  EXPECT_EQ(problems({.scaling = RopeScaling::llama3, .factor = 4, .low_freq_factor = 2, .original_context = 99}), "");
  EXPECT_EQ(problems({.scaling = RopeScaling::yarn, .low_freq_factor = 2, .beta_fast = 9}), "low_freq_factor ");
  EXPECT_EQ(problems({.scaling = RopeScaling::dynamic, .attention_factor = 2}), "attention_factor ");
}

// A kind of scaling given later resets the keys of the earlier kind.
TEST(Rope, ADifferentKindOfScalingResetsTheKeysOfTheFirst) {
  const std::string yarn = "rope: {scaling: yarn, factor: 4, original_context: 128, beta_fast: 16}";
  ModelConfig c;
  load_config_text(c, yarn, "a.yaml", {"rope.scaling=linear"});
  EXPECT_EQ(c.rope.factor, 4);
  EXPECT_EQ(c.rope.original_context, RopeConfig{}.original_context);
  EXPECT_EQ(c.rope.beta_fast, RopeConfig{}.beta_fast);
  ModelConfig wrong;
  const std::string error = error_of([&] {
    load_config_text(wrong, yarn, "a.yaml", {"rope.scaling=linear", "rope.beta_fast=16"});
  });
  EXPECT_NE(error.find("beta_fast: 16 has no effect"), std::string::npos) << error;
}

TEST(DynamicRope, CannotTrainBeyondTheContext) {
  ModelConfig c = stretching();
  std::vector<SettingProblem> errors;
  c.validate(errors);
  EXPECT_TRUE(errors.empty());
  c.context = kTrained + 1;
  c.validate(errors);
  ASSERT_EQ(errors.size(), 1u);
  EXPECT_NE(errors[0].text.find("context: 13 exceeds model.rope.original_context = 12"), std::string::npos)
      << errors[0].text;
}

}  // namespace
}  // namespace ring
