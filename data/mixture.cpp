#include "data/mixture.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "core/check.h"

namespace ring {
namespace {

constexpr std::uint64_t kExactPeriod = 4096, kPeriod = 65536;

std::vector<double> normalised(const std::vector<double>& weights) {
  if (weights.empty()) fail("a mixture needs at least one corpus");
  for (std::size_t i = 0; i < weights.size(); ++i) {
    if (!(weights[i] >= 0) || !std::isfinite(weights[i])) {
      fail("the weight of corpus ", i, " of the mixture is ", weights[i], ", but must be a number of at least 0");
    }
  }
  const double sum = std::accumulate(weights.begin(), weights.end(), 0.0);
  if (sum == 0) fail("the weights of all corpora of a mixture are 0");
  std::vector<double> out = weights;
  for (double& w : out) w /= sum;
  return out;
}

bool expresses(std::uint64_t period, const std::vector<double>& weights) {
  return std::all_of(weights.begin(), weights.end(), [&](double w) {
    const double share = w * static_cast<double>(period);
    return (w == 0 || share > 0.5) && std::abs(share - std::round(share)) < 1e-9 * static_cast<double>(period);
  });
}

// Returns integer shares whose sum is `period`: each weight is rounded down, but to at least 1 unless it is 0; the
// missing units go to the largest remainders.
std::vector<std::uint64_t> shares_of(const std::vector<double>& weights, std::uint64_t period) {
  std::vector<std::uint64_t> shares(weights.size());
  const auto lack = [&](std::size_t i) {
    return weights[i] * static_cast<double>(period) - static_cast<double>(shares[i]);
  };
  for (std::size_t i = 0; i < weights.size(); ++i) {
    const double share = weights[i] * static_cast<double>(period);
    shares[i] = std::max<std::uint64_t>(weights[i] > 0, static_cast<std::uint64_t>(std::floor(share + 1e-6)));
  }
  auto sum = std::accumulate(shares.begin(), shares.end(), std::uint64_t{0});
  for (; sum != period; sum < period ? ++sum : --sum) {
    std::size_t best = 0;
    for (std::size_t i = 1; i < shares.size(); ++i) {
      if (sum < period ? lack(i) > lack(best) : shares[i] > 1 && (shares[best] <= 1 || lack(i) < lack(best))) best = i;
    }
    shares[best] += sum < period ? 1 : -1;
  }
  return shares;
}

}  // namespace

// Orders the M samples of a period. Sample j of a corpus with m samples must not come before position floor(j M / m),
// and must come before position ceil((j + 1) M / m): this keeps every count within 1 of its target. Each position gets
// the allowed sample with the earliest deadline, which meets every deadline (Baruah, Cohen, Plaxton and Varvel,
// "Proportionate Progress", Algorithmica 1996, for one processor).
Mixture::Mixture(const std::vector<double>& given) {
  const std::vector<double> weights = normalised(given);
  if (weights.size() > kPeriod)
    fail("a mixture of ", weights.size(), " corpora is too large: at most ", kPeriod, " fit");
  std::uint64_t period = 1;
  while (period <= kExactPeriod && !expresses(period, weights)) ++period;
  if (period > kExactPeriod) period = kPeriod;
  shares_ = shares_of(weights, period);
  std::vector<std::uint64_t> taken(shares_.size());
  for (std::uint64_t t = 0; t < period; ++t) {
    std::size_t best = shares_.size();
    std::uint64_t best_deadline = 0;
    for (std::size_t c = 0; c < shares_.size(); ++c) {
      if (taken[c] * period >= (t + 1) * shares_[c]) continue;  // too early for a sample from corpus c
      const std::uint64_t deadline = ((taken[c] + 1) * period + shares_[c] - 1) / shares_[c];
      if (taken[c] == shares_[c] || (best < shares_.size() && deadline >= best_deadline)) continue;
      best = c;
      best_deadline = deadline;
    }
    RING_CHECK(best < shares_.size(), "no corpus may supply sample ", t, " of a mixture");
    order_.push_back(static_cast<std::uint32_t>(best));
    rank_.push_back(static_cast<std::uint32_t>(taken[best]++));
  }
}

Mixture::Location Mixture::operator()(std::uint64_t sample) const {
  const std::uint64_t turn = sample / order_.size(), i = sample % order_.size();
  return {order_[i], turn * shares_[order_[i]] + rank_[i]};
}

std::vector<std::uint64_t> Mixture::sample_counts(std::uint64_t num_samples) const {
  std::vector<std::uint64_t> out = shares_;
  for (std::uint64_t& count : out) count *= num_samples / order_.size();
  for (std::uint64_t i = 0; i < num_samples % order_.size(); ++i) ++out[order_[i]];
  return out;
}

double Mixture::weight(std::size_t corpus) const {
  return static_cast<double>(shares_[corpus]) / static_cast<double>(order_.size());
}

MixtureSchedule::MixtureSchedule(const std::vector<Stage>& stages) {
  RING_CHECK(!stages.empty() && stages.front().first_sample == 0, "a schedule of mixtures must begin at sample 0");
  for (const Stage& stage : stages) {
    std::vector<std::uint64_t> before(stage.weights.size());
    if (!parts_.empty()) {
      const Part& last = parts_.back();
      RING_CHECK(stage.first_sample >= last.first && before.size() == last.before.size(),
                 "mixtures of a schedule are out of order or differ in their number of corpora");
      before = last.mixture.sample_counts(stage.first_sample - last.first);
      for (std::size_t c = 0; c < before.size(); ++c) before[c] += last.before[c];
    }
    parts_.push_back({stage.first_sample, Mixture(stage.weights), std::move(before)});
  }
}

Mixture::Location MixtureSchedule::operator()(std::uint64_t sample) const {
  const auto after = std::ranges::upper_bound(parts_, sample, {}, &Part::first);
  const Part& part = *std::prev(after);
  Mixture::Location place = part.mixture(sample - part.first);
  place.index += part.before[place.corpus];
  return place;
}

}  // namespace ring
