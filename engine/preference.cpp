#include "engine/preference.h"

#include <algorithm>
#include <cmath>

#include "core/check.h"
#include "core/fields.h"
#include "data/loader.h"
#include "data/token_store.h"

namespace ring {

void PreferenceConfig::fields(Fields& f) {
  const DocsPage page = docs_page("preferences.md#settings");
  f("loss", loss, "loss on pairs of answers: none, dpo, ipo, hinge or simpo",
    choices<PreferenceLoss>({{"none", PreferenceLoss::none},
                             {"dpo", PreferenceLoss::dpo},
                             {"ipo", PreferenceLoss::ipo},
                             {"hinge", PreferenceLoss::hinge},
                             {"simpo", PreferenceLoss::simpo}}),
    page);
  f("beta", beta, "factor on log-probability ratios; larger values keep the model closer to its start",
    in_range(1e-6, 1e6), page);
  f("gamma", gamma, "simpo: margin by which the chosen answer's score should be larger", in_range(0, 1e6), page);
  f("label_smoothing", label_smoothing, "dpo, simpo: probability that the labels of a pair are swapped",
    in_range(0, 0.499999), page);
  f("length_normalized", length_normalized, "dpo, hinge: score answers by the mean log-probability of their tokens",
    page);
}

void check_pairs(const PreferenceConfig& c, const Corpora& corpora) {
  for (const auto& store : corpora.stores) {
    if (store->train().pairs() == c.on()) continue;
    if (c.on())
      fail("preference.loss: ", store->path(),
           " does not hold pairs of answers. Make one with 'ringmaster data prepare ",
           "--preferences', or set preference.loss: none");
    fail("corpus ", store->path(), " holds pairs of chosen and rejected answers, and would teach both. Set ",
         "preference.loss, for example to dpo");
  }
}

void add_answers(const Batch& b, std::span<const float> token_losses, std::span<AnswerScore> scores) {
  RING_CHECK(b.answers.size() == b.targets.size() && token_losses.size() == b.targets.size(), "losses of ",
             token_losses.size(), " tokens, answers of ", b.answers.size(), ", targets of ", b.targets.size());
  for (std::size_t i = 0; i < b.targets.size(); ++i) {
    if (b.answers[i] < 0 || b.targets[i] < 0) continue;
    AnswerScore& score = scores[static_cast<std::size_t>(b.answers[i])];
    score.log_probability -= static_cast<double>(token_losses[i]);
    ++score.targets;
  }
}

PairLoss& PairLoss::operator+=(const PairLoss& o) {
  loss += o.loss, chosen += o.chosen, rejected += o.rejected, correct += o.correct;
  return *this;
}

namespace {

double sigmoid(double x) { return 1 / (1 + std::exp(-x)); }
// Returns -log sigmoid(x) without overflow.
double softplus_of_minus(double x) { return std::max(-x, 0.0) + std::log1p(std::exp(-std::fabs(x))); }

struct Margin {
  double loss, slope;  // slope: derivative of the loss by h
};

Margin loss_of_margin(const PreferenceConfig& p, double h) {
  if (p.loss == PreferenceLoss::ipo) {
    const double off = h - 1 / (2 * p.beta);
    return {off * off, 2 * off};
  }
  if (p.loss == PreferenceLoss::hinge) {
    const double missing = 1 - p.beta * h;
    return missing <= 0 ? Margin{0, 0} : Margin{missing, -p.beta};  // NaN passes on
  }
  const double x = p.beta * h - (p.loss == PreferenceLoss::simpo ? p.gamma : 0), e = p.label_smoothing;
  return {(1 - e) * softplus_of_minus(x) + e * softplus_of_minus(-x),
          p.beta * (e * sigmoid(x) - (1 - e) * sigmoid(-x))};
}

}  // namespace

PairResult pair_loss(const PreferenceConfig& p, const AnswerScore& chosen, const AnswerScore& rejected,
                     double chosen_reference, double rejected_reference) {
  const bool refers = p.needs_reference();
  const double c = chosen.log_probability - (refers ? chosen_reference : 0),
               r = rejected.log_probability - (refers ? rejected_reference : 0);
  const auto part = [&](const AnswerScore& a) { return p.averages() ? 1 / std::max(1.0, a.targets) : 1; };
  const double c_part = part(chosen), r_part = part(rejected);
  const Margin m = loss_of_margin(p, c_part * c - r_part * r);
  const double c_reward = p.beta * (refers ? c : c_part * c), r_reward = p.beta * (refers ? r : r_part * r);
  return {{m.loss, c_reward, r_reward, c_reward > r_reward ? 1.0 : 0.0}, {-m.slope * c_part, m.slope * r_part}};
}

}  // namespace ring
