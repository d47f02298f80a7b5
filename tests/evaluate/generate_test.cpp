#include "evaluate/generate.h"
#include "model/decoder.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <set>
#include <tuple>

#include "core/fields.h"
#include "evaluate/stop_strings.h"

namespace ring {
namespace {

const std::vector<float> kLogits = {std::log(0.5f), std::log(0.1f), std::log(0.3f), std::log(0.06f), std::log(0.04f)};

TEST(SampleToken, FollowsTheDistribution) {
  Sampling s;
  s.temperature = 1;
  std::vector<double> counts(5, 0);
  constexpr int kDraws = 20000;
  for (int i = 0; i < kDraws; ++i)
    counts[static_cast<std::size_t>(sample_token(kLogits, s, static_cast<std::uint64_t>(i)))] += 1.0 / kDraws;
  for (std::size_t i = 0; i < 5; ++i) {
    const double p = std::exp(kLogits[i]);
    EXPECT_NEAR(counts[i], p, 5 * std::sqrt(p * (1 - p) / kDraws)) << i;
  }
}

std::set<std::int32_t> draw_tokens(const Sampling& s) {
  std::set<std::int32_t> seen;
  for (std::uint64_t i = 0; i < 3000; ++i) seen.insert(sample_token(kLogits, s, i));
  return seen;
}

TEST(SampleToken, LimitsTheCandidates) {
  Sampling s;
  s.temperature = 1;
  s.top_k = 2;
  EXPECT_EQ(draw_tokens(s), (std::set<std::int32_t>{0, 2}));
  s.top_k = 0;
  s.top_p = 0.85;  // 0.5 + 0.3 is too little, and 0.1 more is enough
  EXPECT_EQ(draw_tokens(s), (std::set<std::int32_t>{0, 1, 2}));
  s.top_p = 0;
  EXPECT_EQ(draw_tokens(s), (std::set<std::int32_t>{0}));
  s = {};
  s.temperature = 0;
  EXPECT_EQ(draw_tokens(s), (std::set<std::int32_t>{0}));
}

TEST(SampleToken, RepeatsForASeedAndDiffersBetweenSeeds) {
  Sampling a, b;
  a.temperature = b.temperature = 1;
  b.seed = a.seed + 1;
  std::vector<std::int32_t> first, again, other;
  for (std::uint64_t i = 0; i < 100; ++i) {
    first.push_back(sample_token(kLogits, a, i));
    again.push_back(sample_token(kLogits, a, i));
    other.push_back(sample_token(kLogits, b, i));
  }
  EXPECT_EQ(first, again);
  EXPECT_NE(first, other);
}

TEST(SampleToken, RefusesLogitsThatAreNotFinite) {
  for (float bad : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
    std::vector<float> logits = kLogits;
    logits[3] = bad;
    EXPECT_THROW(sample_token(logits, {}, 0), Error);
  }
}

struct TestedModel {
  explicit TestedModel(const ModelConfig& c) : ctx{Stream::cpu(1)}, decoder(c) { decoder.allocate(ctx, 3); }
  explicit TestedModel(const std::string& attention = "{kind: dense}") : TestedModel(config(attention)) {}
  static ModelConfig config(const std::string& attention) {
    ModelConfig c;
    c.vocab_size = 50;
    c.context = 16;
    c.layers = 2;
    c.width = 32;
    c.heads = 2;
    c.positions = Positions::learned;
    c.init_std = 0.5;
    load_config_text(c, "attention: " + attention, "test");
    return c;
  }
  static ModelConfig stretching() {
    ModelConfig c = config("{kind: dense}");
    c.positions = Positions::rope;
    c.rope = {.theta = 100, .scaling = RopeScaling::dynamic, .factor = 3, .original_context = 8};
    c.context = 64;  // as set by `generate --context`
    return c;
  }
  std::vector<std::int32_t> write(std::vector<std::int32_t> prompt, std::int64_t n) {
    std::vector<std::int32_t> out;
    generate(decoder, ctx, std::move(prompt), {}, n, [&](std::int32_t id) { return out.push_back(id), true; });
    return out;
  }
  // Computes the same text from whole passes without a cache.
  std::vector<std::int32_t> write_uncached(std::vector<std::int32_t> prompt, std::int64_t n) {
    std::vector<std::int32_t> out;
    for (std::int64_t i = 0; i < n; ++i) {
      if (prompt.size() > 16) prompt.erase(prompt.begin(), prompt.end() - 8);
      ring::Run run{ctx};
      const std::int64_t length = static_cast<std::int64_t>(prompt.size());
      const Var h = decoder.hidden(run, from_host(prompt, ctx.stream), Sequences::uniform(1, length, ctx));
      const Tensor logits = decoder.logits(run, h.value.narrow(0, length - 1, 1));
      out.push_back(sample_token(to_host<float>(logits, ctx.stream), {}, static_cast<std::uint64_t>(i)));
      prompt.push_back(out.back());
    }
    return out;
  }
  ExecContext ctx;
  Decoder decoder;
};

TEST(Generate, EqualsSamplingFromWholePassesWithoutACache) {
  for (const char* attention :
       {"{kind: dense}", "{kind: window, window: 3}", "{kind: window, window: 2, sinks: 1}",
        "{kind: dilated, segments: [4, 32], rates: [1, 2]}", "{kind: block_sparse, block: 64, rules: [{}]}"}) {
    TestedModel m(attention);
    EXPECT_EQ(m.write({1, 2, 3}, 12), m.write_uncached({1, 2, 3}, 12)) << attention;
    EXPECT_EQ(m.write({5}, 60), m.write_uncached({5}, 60)) << attention;  // the context is full several times
  }
}

// The texts differ in length, end at different times, and each has its own random numbers.
TEST(Generate, TextsOfABatchEqualSingleTexts) {
  for (const ModelConfig& c :
       {TestedModel::config("{kind: dense}"), TestedModel::config("{kind: window, window: 3}"),
        TestedModel::config("{kind: dilated, segments: [4, 32], rates: [1, 2]}"), TestedModel::stretching()}) {
    TestedModel m(c);
    std::vector<TextStart> starts;
    for (std::size_t i = 0; i < 5; ++i) {
      TextStart start{std::vector<std::int32_t>(1 + 4 * i, static_cast<std::int32_t>(3 + i)), {}};
      start.sampling.seed = 7 + i;
      start.sampling.repetition_penalty = i % 2 ? 1.0 : 1.3;
      starts.push_back(start);
    }
    const std::vector<std::size_t> most = {40, 3, 25, 1, 40};
    std::vector<std::vector<std::int32_t>> together(starts.size());
    generate_together(m.decoder, m.ctx, starts, 40, [&](std::size_t i, std::int32_t id) {
      together[i].push_back(id);
      return together[i].size() < most[i];
    });
    for (std::size_t i = 0; i < starts.size(); ++i) {
      std::vector<std::int32_t> alone;
      generate(m.decoder, m.ctx, starts[i].tokens, starts[i].sampling, 40, [&](std::int32_t id) {
        alone.push_back(id);
        return alone.size() < most[i];
      });
      EXPECT_EQ(together[i], alone) << to_yaml(c) << " text " << i;
      EXPECT_EQ(alone.size(), most[i]);
    }
  }
}

TEST(RepetitionPenalty, MakesEarlierTokensLessLikely) {
  std::vector<float> logits = {2, -2, 0.5, 3};
  const std::vector<std::int32_t> text = {1, 0, 0, 77};  // the last token is not in the logits
  penalize_repetitions(logits, text, 2);
  EXPECT_EQ(logits, (std::vector<float>{1, -4, 0.5, 3}));
  penalize_repetitions(logits, text, 1);
  EXPECT_EQ(logits, (std::vector<float>{1, -4, 0.5, 3}));
}

// The result does not depend on how the text is split into pieces.
TEST(StopStrings, EndTheTextBeforeTheFirstMatch) {
  const std::string text = "abcabdabcabcx<|end|>tail";
  const std::vector<std::tuple<std::vector<std::string>, std::string, std::optional<std::string>>> cases = {
      {{}, text, std::nullopt},
      {{"nowhere"}, text, std::nullopt},
      {{"tails", "taik"}, text, std::nullopt},
      {{"<|end|>"}, "abcabdabcabcx", "<|end|>"},
      {{"abcabcx"}, "abcabd", "abcabcx"},  // its beginning also occurs earlier
      {{"|end", "<|"}, "abcabdabcabcx", "<|"},
      {{"d", "bd"}, "abca", "bd"},
      {{"a"}, "", "a"}};
  for (const auto& [stops, want, found] : cases)
    for (std::size_t first = 0; first <= text.size(); ++first)
      for (const std::size_t size : {1, 2, 5, 24}) {
        StopStrings s(stops);
        std::string shown = s.push(text.substr(0, first));
        for (std::size_t at = first; at < text.size(); at += size) shown += s.push(text.substr(at, size));
        shown += s.finish();
        EXPECT_EQ(shown, want) << first << " " << size;
        EXPECT_EQ(s.found(), found);
      }
}

TEST(Generate, ContinuesBeyondTheContext) {
  TestedModel m;
  EXPECT_EQ(m.write({5}, 60).size(), 60u);
  EXPECT_EQ(m.write(std::vector<std::int32_t>(40, 7), 5).size(), 5u);  // a prompt longer than the context
}

TEST(Generate, StopsIfTheCallbackReturnsFalse) {
  TestedModel m;
  int count = 0;
  generate(m.decoder, m.ctx, {1}, {}, 100, [&](std::int32_t) { return ++count < 4; });
  EXPECT_EQ(count, 4);
}

}  // namespace
}  // namespace ring
