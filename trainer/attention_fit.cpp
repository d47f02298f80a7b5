#include "trainer/attention_fit.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "core/check.h"
#include "evaluate/evaluate.h"
#include "model/attention/trained_parts.h"
#include "model/attention_layer.h"
#include "model/patterns.h"
#include "parallel/plan.h"

namespace ring {

AttentionTrials::AttentionTrials(Model& model, const ExecContext& ctx, const ValidationSet& set)
    : model_(model), ctx_(ctx), set_(set), alone_(mesh_of_one()), own_(patterns_of(model.config())) {
  for (const AttentionConfig* section : attentions_of(model.config())) {
    const std::string why = why_not_static_pattern(*section, model.config().kv_heads);
    RING_CHECK(why.empty(), "a layer ", why);
  }
}

void AttentionTrials::set_patterns(const std::vector<Pattern>& patterns) {
  const std::vector<AttentionLayer*> layers = model_.attention_layers();
  for (std::size_t i = 0; i < patterns.size(); ++i) layers[i]->set_pattern(patterns[i]);
}

double AttentionTrials::loss_with(const std::vector<Pattern>& patterns) {
  RING_CHECK(patterns.size() == own_.size(), patterns.size(), " patterns for ", own_.size(), " layers");
  struct PutBack {
    AttentionTrials& trials;
    ~PutBack() { trials.set_patterns(trials.own_); }
  } put_back{*this};
  set_patterns(patterns);
  Evaluation e = evaluate(model_, ctx_, set_, alone_->all());
  batch_losses_ = std::move(e.batch_losses);
  return e.loss;
}

double AttentionTrials::loss_with(std::size_t layer, const Pattern& pattern) {
  std::vector<Pattern> patterns = own_;
  patterns.at(layer) = pattern;
  return loss_with(patterns);
}

namespace {

// Densities are counted in units: kUnits is a density of 1. kRounding, in units, is the tolerance for rounding errors.
constexpr double kUnits = 1000, kRounding = 1e-9;
constexpr double kNever = std::numeric_limits<double>::infinity();

std::size_t units_of(double density) { return static_cast<std::size_t>(std::ceil(density * kUnits - kRounding)); }

std::vector<std::size_t> cheapest(const ByChoice& densities) {
  std::vector<std::size_t> choices;
  for (const std::vector<double>& of : densities)
    choices.push_back(static_cast<std::size_t>(std::ranges::min_element(of) - of.begin()));
  return choices;
}

// Results for the layers so far, by the number of density units used: the minimum sum of the rises of the loss, and the
// choice of the last layer that gives this sum.
struct Sums {
  std::vector<double> min;
  std::vector<std::size_t> choice;
  explicit Sums(std::size_t max) : min(max + 1, kNever), choice(max + 1) {}
};

Sums with_layer(const Sums& before, const std::vector<double>& rises, const std::vector<double>& densities) {
  const std::size_t max = before.min.size() - 1;
  Sums after(max);
  for (std::size_t c = 0; c < rises.size(); ++c)
    for (std::size_t u = units_of(densities[c]); u <= max; ++u) {
      const double sum = before.min[u - units_of(densities[c])] + rises[c];
      if (sum < after.min[u]) after.min[u] = sum, after.choice[u] = c;
    }
  return after;
}

}  // namespace

double rise_standard_error(const std::vector<double>& before, const std::vector<double>& after) {
  RING_CHECK(before.size() == after.size(), before.size(), " batches before and ", after.size(), " after");
  const auto n = static_cast<double>(before.size());
  if (n < 2) return std::numeric_limits<double>::quiet_NaN();
  double mean = 0, squares = 0;
  for (std::size_t i = 0; i < before.size(); ++i) mean += (after[i] - before[i]) / n;
  for (std::size_t i = 0; i < before.size(); ++i) squares += std::pow(after[i] - before[i] - mean, 2);
  return std::sqrt(squares / (n - 1) / n);
}

double min_density(const ByChoice& densities) {
  double sum = 0;
  for (const std::vector<double>& of : densities) sum += std::ranges::min(of);
  return sum / static_cast<double>(densities.size());
}

std::vector<std::size_t> choose_attention(const ByChoice& rises, const ByChoice& densities, double max) {
  RING_CHECK(min_density(densities) <= max + kRounding, "no choice of attention has a density of ", max);
  const auto room = static_cast<std::size_t>(max * kUnits * static_cast<double>(densities.size()) + kRounding);
  std::vector<Sums> sums = {Sums(room)};
  sums[0].min[0] = 0;
  for (std::size_t i = 0; i < rises.size(); ++i) sums.push_back(with_layer(sums[i], rises[i], densities[i]));
  const std::vector<double>& all = sums.back().min;
  std::vector<std::size_t> choices = cheapest(densities);
  auto units = static_cast<std::size_t>(std::ranges::min_element(all) - all.begin());
  // Nothing fits with densities rounded up, so each layer keeps its choice with the lowest density.
  if (all[units] == kNever) return choices;
  for (std::size_t i = choices.size(); i-- > 0; units -= units_of(densities[i][choices[i]]))
    choices[i] = sums[i + 1].choice[units];
  return choices;
}

}  // namespace ring
