// Losses of pairs of answers: published formulas, derivatives, and settings that are refused.

#include "engine/preference.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "engine/config.h"

namespace ring {
namespace {

constexpr AnswerScore kChosen{-23.5, 11}, kRejected{-31.25, 17};
constexpr double kChosenReference = -24.75, kRejectedReference = -30.5;

double log_sigmoid(double x) { return std::log(1 / (1 + std::exp(-x))); }

// Each loss as its paper writes it, by the log-probabilities of both answers.
double loss_of(const PreferenceConfig& p, double chosen, double rejected) {
  const double nc = kChosen.targets, nr = kRejected.targets;
  double ratio_c = chosen - kChosenReference, ratio_r = rejected - kRejectedReference;
  if (p.loss == PreferenceLoss::simpo) {
    const double x = p.beta / nc * chosen - p.beta / nr * rejected - p.gamma;
    return -(1 - p.label_smoothing) * log_sigmoid(x) - p.label_smoothing * log_sigmoid(-x);
  }
  if (p.length_normalized || p.loss == PreferenceLoss::ipo) ratio_c /= nc, ratio_r /= nr;
  const double h = ratio_c - ratio_r;
  if (p.loss == PreferenceLoss::ipo) return std::pow(h - 1 / (2 * p.beta), 2);
  if (p.loss == PreferenceLoss::hinge) return std::max(0.0, 1 - p.beta * h);
  return -(1 - p.label_smoothing) * log_sigmoid(p.beta * h) - p.label_smoothing * log_sigmoid(-p.beta * h);
}

std::vector<PreferenceConfig> kinds() {
  std::vector<PreferenceConfig> all;
  for (const auto loss : {PreferenceLoss::dpo, PreferenceLoss::ipo, PreferenceLoss::hinge, PreferenceLoss::simpo})
    for (const bool mean : {false, true})
      for (const double smoothing : {0.0, 0.2})
        for (const double beta : {0.1, 2.0})
          all.push_back({.loss = loss, .beta = beta, .label_smoothing = smoothing, .length_normalized = mean});
  return all;
}

PairResult result(const PreferenceConfig& p, double chosen = kChosen.log_probability,
                  double rejected = kRejected.log_probability) {
  return pair_loss(p, {chosen, kChosen.targets}, {rejected, kRejected.targets}, kChosenReference, kRejectedReference);
}

TEST(Preference, LossesEqualTheirFormulas) {
  for (const PreferenceConfig& p : kinds())
    EXPECT_NEAR(result(p).loss.loss, loss_of(p, kChosen.log_probability, kRejected.log_probability), 1e-12)
        << static_cast<int>(p.loss) << " beta " << p.beta;
}

TEST(Preference, WeightsAreMinusTheDerivatives) {
  constexpr double kStep = 1e-5;
  const double c = kChosen.log_probability, r = kRejected.log_probability;
  for (const PreferenceConfig& p : kinds()) {
    const PairWeights w = result(p).weights;
    EXPECT_NEAR(-w.chosen, (loss_of(p, c + kStep, r) - loss_of(p, c - kStep, r)) / (2 * kStep), 1e-8);
    EXPECT_NEAR(-w.rejected, (loss_of(p, c, r + kStep) - loss_of(p, c, r - kStep)) / (2 * kStep), 1e-8);
  }
}

TEST(Preference, RewardsAreScaledRatios) {
  const PairLoss l = result({.loss = PreferenceLoss::dpo, .beta = 0.5}).loss;
  EXPECT_DOUBLE_EQ(l.chosen, 0.5 * (-23.5 + 24.75));
  EXPECT_DOUBLE_EQ(l.rejected, 0.5 * (-31.25 + 30.5));
  EXPECT_EQ(l.correct, 1);
  const PairLoss ipo = result({.loss = PreferenceLoss::ipo, .beta = 0.5}).loss;  // a sum, although the loss has means
  EXPECT_DOUBLE_EQ(ipo.chosen, l.chosen);
  EXPECT_DOUBLE_EQ(ipo.rejected, l.rejected);
  const PairLoss simpo = result({.loss = PreferenceLoss::simpo, .beta = 2}).loss;
  EXPECT_DOUBLE_EQ(simpo.chosen, 2 * -23.5 / 11);
  EXPECT_DOUBLE_EQ(simpo.rejected, 2 * -31.25 / 17);
  EXPECT_EQ(result({.loss = PreferenceLoss::dpo}, -40).loss.correct, 0);
}

// Margins whose exponentials overflow keep finite losses; a score that is not a number does not pass.
TEST(Preference, ExtremeAndInvalidScores) {
  const PreferenceConfig dpo{.loss = PreferenceLoss::dpo, .beta = 1};
  EXPECT_DOUBLE_EQ(result(dpo, -5000).loss.loss, 5000 - 24.75 + (-31.25 + 30.5));
  EXPECT_EQ(result(dpo, 5000).loss.loss, 0);
  for (const PreferenceConfig& p : kinds()) {
    const PairResult r = result(p, std::nan(""));
    EXPECT_TRUE(std::isnan(r.loss.loss));
    EXPECT_EQ(r.loss.correct, 0);
  }
}

TEST(Preference, UnsupportedSettingsAreRefused) {
  Config good;
  good.preference.loss = PreferenceLoss::dpo;
  good.data.packing = {.documents = true, .best_fit = 16};
  const auto problems = [&](auto change) {
    Config c = good;
    change(c);
    std::vector<SettingProblem> found;
    c.validate(found);
    return std::ranges::count_if(
        found, [](const SettingProblem& p) { return p.text.find("preference.") != std::string::npos; });
  };
  EXPECT_EQ(problems([](Config&) {}), 0);
  EXPECT_EQ(problems([](Config& c) { c.data.packing.best_fit = 0; }), 1);
  EXPECT_EQ(problems([](Config& c) { c.data.packing.documents = false; }), 1);
  EXPECT_EQ(problems([](Config& c) { c.data.packing.align = 8; }), 1);
  EXPECT_EQ(problems([](Config& c) { c.data.mixture.resize(2); }), 1);
  EXPECT_EQ(problems([](Config& c) { c.train.context = 16; }), 1);
  EXPECT_EQ(problems([](Config& c) { c.train.sequence_chunk = 16; }), 1);
  EXPECT_EQ(problems([](Config& c) { c.train.z_loss = 1e-4; }), 1);
  EXPECT_EQ(problems([](Config& c) { c.parallel.pp_slices = 2; }), 1);
  EXPECT_EQ(problems([](Config& c) { c.parallel.local_steps = 10; }), 1);
  EXPECT_EQ(problems([](Config& c) {
              c.preference.loss = PreferenceLoss::ipo;
              c.preference.label_smoothing = 0.1;
            }),
            1);
  EXPECT_EQ(problems([](Config& c) {
              c.preference.loss = PreferenceLoss::none;
              c.train.z_loss = 1e-4;
            }),
            0);
}

}  // namespace
}  // namespace ring
