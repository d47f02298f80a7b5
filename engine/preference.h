#pragma once
// Training on pairs of answers to one prompt: the settings, and the loss of a pair with its gradient. A model's score
// of an answer is the sum of the log-probabilities of the answer's tokens, or their mean. The loss is a function of the
// scores of both answers, so its gradient is that of a cross-entropy whose tokens are weighted by answer.

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace ring {

class Fields;
struct Batch;
struct Corpora;

enum class PreferenceLoss : std::uint8_t { none, dpo, ipo, hinge, simpo };

struct PreferenceConfig {
  PreferenceLoss loss = PreferenceLoss::none;
  double beta = 0.1;
  double gamma = 0.5;  // used only with simpo
  double label_smoothing = 0;
  bool length_normalized = false;
  void fields(Fields&);

  bool on() const { return loss != PreferenceLoss::none; }
  bool needs_reference() const { return on() && loss != PreferenceLoss::simpo; }
  // Returns true if scores are means over tokens.
  bool averages() const { return length_normalized || loss == PreferenceLoss::ipo || loss == PreferenceLoss::simpo; }
};

// Throws Error unless all corpora, or none of them, hold pairs of answers, as the settings require.
void check_pairs(const PreferenceConfig&, const Corpora&);

// Sums over the targets of one answer.
struct AnswerScore {
  double log_probability = 0;
  double targets = 0;
};

// Adds the negative losses of a batch's tokens to the scores of their answers. scores: one for each Batch::documents.
void add_answers(const Batch&, std::span<const float> token_losses, std::span<AnswerScore> scores);

// Loss and metrics of one pair, or their sums over several pairs.
struct PairLoss {
  double loss = 0;
  // Rewards as in TRL: beta (log pi - log pi_ref), summed over tokens; simpo: beta times the mean of log pi.
  double chosen = 0, rejected = 0;
  double correct = 0;  // 1 if the chosen answer has the larger reward
  PairLoss& operator+=(const PairLoss&);
};
// Weights of the cross-entropies of both answers' tokens: minus the derivatives of the loss by the log-probability of
// one token.
struct PairWeights {
  double chosen = 0, rejected = 0;
};
struct PairResult {
  PairLoss loss;
  PairWeights weights;
};

// Computes the loss of a pair. The references are ignored with simpo. With s = score, r = reference score, and
// h = (s_c - r_c) - (s_r - r_r):
//   dpo    -(1 - e) log sigmoid(beta h) - e log sigmoid(-beta h); e: label_smoothing (Rafailov et al. 2023, equation 7;
//          Mitchell 2023 for e > 0)
//   ipo    (h - 1 / (2 beta))^2 (Azar et al. 2023, equation 17), with means as scores
//   hinge  max(0, 1 - beta h) (Zhao et al. 2023)
//   simpo  like dpo with r = 0 and beta h - gamma instead of beta h (Meng et al. 2024, equation 6), with means as
//   scores
PairResult pair_loss(const PreferenceConfig&, const AnswerScore& chosen, const AnswerScore& rejected,
                     double chosen_reference, double rejected_reference);

}  // namespace ring
