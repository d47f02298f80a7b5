// The cost in loss of each layer's attention, and the choice of the cheapest attention.
#include "trainer/attention_fit.h"
#include "model/decoder.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <random>

#include "core/fields.h"
#include "model/patterns.h"
#include "tests/data/corpus_case.h"
#include "tests/model/named_params.h"
#include "tests/trainer/tiny.h"

namespace ring::test {
namespace {

namespace fs = std::filesystem;

// --- choosing ---

struct Instance {
  ByChoice rises, densities;
  double max = 0;
};

double mean_density(const Instance& of, const std::vector<std::size_t>& choices) {
  double sum = 0;
  for (std::size_t i = 0; i < choices.size(); ++i) sum += of.densities[i][choices[i]];
  return sum / static_cast<double>(choices.size());
}

double rise(const Instance& of, const std::vector<std::size_t>& choices) {
  double sum = 0;
  for (std::size_t i = 0; i < choices.size(); ++i) sum += of.rises[i][choices[i]];
  return sum;
}

// Returns the smallest sum of rises over all assignments with a mean density of at most `most`.
double min_rise(const Instance& of, double most) {
  std::vector<std::size_t> choices(of.rises.size());
  double least = std::numeric_limits<double>::infinity();
  for (std::size_t at = 0; at < choices.size();) {
    if (mean_density(of, choices) <= most + 1e-12) least = std::min(least, rise(of, choices));
    for (at = 0; at < choices.size() && ++choices[at] == of.rises[at].size(); ++at) choices[at] = 0;
  }
  return least;
}

// Returns a random instance. digits: resolution of the densities, 1000 for thousandths.
Instance random_instance(std::mt19937& random, int digits) {
  const auto number = [&](int least, int most) { return std::uniform_int_distribution<int>(least, most)(random); };
  Instance out;
  const int choices = number(1, 4);
  for (int layer = number(1, 5); layer > 0; --layer) {
    out.rises.emplace_back(), out.densities.emplace_back();
    for (int c = 0; c < choices; ++c) {
      out.rises.back().push_back(number(-20, 200) / 1000.0);
      out.densities.back().push_back(number(0, digits) / static_cast<double>(digits));
    }
  }
  const double least = min_density(out.densities);
  out.max = std::min(1.0, least + number(0, 1000) / 2000.0);
  return out;
}

TEST(ChooseAttention, FindsTheBestAssignment) {
  std::mt19937 random(7);
  for (int n = 0; n < 400; ++n) {
    const Instance one = random_instance(random, 1000);
    const std::vector<std::size_t> got = choose_attention(one.rises, one.densities, one.max);
    ASSERT_EQ(got.size(), one.rises.size());
    EXPECT_LE(mean_density(one, got), one.max + 1e-9);
    EXPECT_NEAR(rise(one, got), min_rise(one, one.max), 1e-9) << n;
  }
}

TEST(ChooseAttention, RoundsDensitiesUp) {
  std::mt19937 random(8);
  for (int n = 0; n < 400; ++n) {
    const Instance one = random_instance(random, 997'231);
    const std::vector<std::size_t> got = choose_attention(one.rises, one.densities, one.max);
    EXPECT_LE(mean_density(one, got), one.max + 1e-9);
    EXPECT_LE(rise(one, got), min_rise(one, one.max - 1e-3) + 1e-9) << n;
  }
}

TEST(ChooseAttention, PrefersLowerDensityAtEqualRise) {
  EXPECT_EQ(choose_attention({{0, 0, 0}, {0, 0, 0}}, {{0.3, 0.1, 0.2}, {0.3, 0.2, 0.1}}, 1),
            (std::vector<std::size_t>{1, 2}));
  // The density fits exactly, although it is not a multiple of a thousandth.
  EXPECT_EQ(choose_attention({{5, 0}}, {{1.0 / 3, 0.5}}, 1.0 / 3), std::vector<std::size_t>{0});
  EXPECT_DOUBLE_EQ(min_density({{0.5, 0.2}, {0.4, 0.7}}), 0.3);
}

// --- measuring ---

class AttentionFit : public testing::Test {
 protected:
  AttentionFit() : folder_(fs::temp_directory_path() / ("ringmaster-fit-" + std::to_string(getpid()))) {
    fs::create_directories(folder_);
    corpora_ = corpus("a.h5", 1100);
  }
  ~AttentionFit() override { fs::remove_all(folder_); }

  Corpora corpus(const char* name, std::int64_t length) const {
    std::vector<std::int32_t> tokens;
    for (std::int64_t i = 0; i < length; ++i) tokens.push_back(static_cast<std::int32_t>(i * i % 251 + i % 6));
    return open_corpus(write_corpus((folder_ / name).string(), tokens, tokens));
  }
  static ModelConfig with(const std::vector<std::string>& settings = {}) {
    Config c = tiny_config();
    c.model.context = 256;
    c.model.layers = 3;
    c.model.init_std = 0.2;
    override_config(c.model, settings);
    return c.model.resolved();
  }
  // Returns a model. Models with the same seed have the same weights, since the kinds of attention here have no weights
  // of their own.
  std::unique_ptr<Decoder> model(const ModelConfig& c) const {
    auto out = std::make_unique<Decoder>(c);
    out->allocate(ctx_, 5);
    return out;
  }
  double loss_of(const ModelConfig& c) const { return AttentionTrials(*model(c), ctx_, set()).loss(); }
  ValidationSet set() const { return {corpora_, {.context = 256, .rows = 2}}; }

  fs::path folder_;
  Corpora corpora_;
  ExecContext ctx_{Stream::cpu(2)};
};

const char* const kChoices[] = {
    "{kind: window, window: 16, sinks: 2}",
    "{kind: block_sparse, block: 64, rules: [{pattern: content, local: 1, keep: 2}]}",
    "{kind: dilated, segments: [16, 64], rates: [1, 4]}",
    "{kind: block_sparse, block: 64, rules: [{pattern: random, density: 0.3, seed: 4}]}",
    "{kind: window, window: 16, pools: [8]}",
};

TEST_F(AttentionFit, ATriedLayerAttendsAsInAModelBuiltWithItsPattern) {
  const ValidationSet set = this->set();
  const std::unique_ptr<Decoder> dense = model(with());
  AttentionTrials trials(*dense, ctx_, set);
  const double before = trials.loss();
  for (const std::string choice : kChoices) {
    const ModelConfig everywhere = with({"attention=" + choice});
    const std::vector<Pattern> patterns = patterns_of(everywhere);
    for (std::size_t i = 0; i < 3; ++i) {
      const double got = trials.loss_with(i, patterns[i]);
      const std::string layer = str("attention_layers=[{layers: \"", i, "\", attention: ", choice, "}]");
      EXPECT_NEAR(got, loss_of(with({layer})), 1e-6) << choice << ", layer " << i;
      EXPECT_NE(got, before) << choice << ", layer " << i;
    }
    EXPECT_NEAR(trials.loss_with(patterns), loss_of(everywhere), 1e-6) << choice;
    EXPECT_EQ(trials.loss(), before) << choice;
  }
}

// The result does not depend on the model's own attention.
TEST_F(AttentionFit, AModelAttendsAsBeforeAfterTrials) {
  const ValidationSet set = this->set();
  for (const std::string own : kChoices) {
    const std::unique_ptr<Decoder> tried = model(with({"attention=" + own}));
    AttentionTrials trials(*tried, ctx_, set);
    const double before = trials.loss();
    EXPECT_NE(trials.loss_with(1, Pattern{}), before) << own;
    EXPECT_EQ(trials.loss(), before) << own;
    EXPECT_EQ(AttentionTrials(*tried, ctx_, set).loss(), before) << own;
  }
}

// The batch losses equal those of each batch alone, and the error of the rise follows from them.
TEST_F(AttentionFit, LossesAreRecordedPerBatch) {
  const std::unique_ptr<Decoder> dense = model(with());
  const ValidationSet both(corpus("two.h5", 4 * 256 + 1), {.context = 256, .rows = 2});
  ASSERT_EQ(both.batches(), 2);
  AttentionTrials trials(*dense, ctx_, both);
  const double loss = trials.loss();
  const std::vector<double> before = trials.batch_losses();
  ASSERT_EQ(before.size(), 2u);
  EXPECT_NEAR((before[0] + before[1]) / 2, loss, 1e-12);
  EXPECT_GT(std::abs(before[0] - before[1]), 1e-4);
  const ValidationSet first(corpus("b.h5", 2 * 256 + 1), {.context = 256, .rows = 2});
  ASSERT_EQ(first.batches(), 1);
  EXPECT_NEAR(AttentionTrials(*dense, ctx_, first).loss(), before[0], 1e-12);
  trials.loss_with(patterns_of(with({"attention={kind: window, window: 1}"})));
  const std::vector<double> after = trials.batch_losses();
  EXPECT_NEAR(rise_standard_error(before, after), std::abs(after[0] - before[0] - (after[1] - before[1])) / 2, 1e-12);
}

TEST(AttentionFitErrors, AreStandardErrorsOfTheMeanDifference) {
  EXPECT_DOUBLE_EQ(rise_standard_error({5, 7, 9}, {6, 9, 12}), 1 / std::sqrt(3.0));  // rises of 1, 2 and 3
  EXPECT_DOUBLE_EQ(rise_standard_error({1, 2}, {3, 4}), 0);
  EXPECT_TRUE(std::isnan(rise_standard_error({1}, {2})));
}

// The attention of two of three layers adds nothing to the residual stream, so that they may attend to anything.
TEST_F(AttentionFit, TheLayerThatMattersGetsTheDensity) {
  const ValidationSet set = this->set();
  for (const std::size_t matters : {0, 1, 2}) {
    const std::unique_ptr<Decoder> planted = model(with());
    for (std::size_t i = 0; i < 3; ++i)
      for (const Param* out : test::params_named(*planted, str("blocks.", i, ".attention.wo.weight")))
        if (const Tensor& w = out->var.value; i != matters)
          std::memset(w.data<float>(), 0, static_cast<std::size_t>(w.numel()) * sizeof(float));
    AttentionTrials trials(*planted, ctx_, set);
    const double loss = trials.loss();
    const std::vector<Pattern> windows = patterns_of(with({"attention={kind: window, window: 1}"}));
    ByChoice rises, densities;
    for (std::size_t i = 0; i < 3; ++i) {
      rises.push_back({trials.loss_with(i, windows[i]) - loss, 0});
      densities.push_back({0.01, 1});
      if (i != matters) {
        EXPECT_EQ(rises[i][0], 0) << i;
      }
    }
    rises[matters][0] = std::abs(rises[matters][0]);  // the weights are noise: the loss differs, but need not rise
    EXPECT_GT(rises[matters][0], 0);
    std::vector<std::size_t> want(3, 0);
    want[matters] = 1;
    EXPECT_EQ(choose_attention(rises, densities, 0.4), want);
    EXPECT_EQ(choose_attention(rises, densities, 0.3), std::vector<std::size_t>(3, 0)) << "no room";
  }
}

TEST_F(AttentionFit, LayersWithStateBesidesAPatternAreRefused) {
  const ValidationSet set = this->set();
  for (const char* own :
       {"{kind: block_sparse, block: 64, rules: [{pattern: learned, local: 1, keep: 2}]}",
        "{kind: block_sparse, block: 64, rules: [{pattern: importance, local: 1, keep: 2}]}",
        "{kind: block_sparse, block: 64, layers_per_selection: 2, rules: [{pattern: content, local: 1, keep: 2}]}",
        "{kind: window, window: 8, pools: [8], pooling: learned}",
        "{kind: window, window: 8, pools: [8], pool_gates: true}"}) {
    const std::unique_ptr<Decoder> other = model(with({str("attention=", own)}));
    EXPECT_ANY_THROW(AttentionTrials(*other, ctx_, set)) << own;
  }
}

}  // namespace
}  // namespace ring::test
