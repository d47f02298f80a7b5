#include "model/rope.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace ring {
namespace {

// Between the channels of which one turns beta_fast times over the original context, and one beta_slow times, the share
// that is stretched rises from 0 to 1: whole channels at both ends, as transformers has it.
class YarnRamp {
 public:
  YarnRamp(const RopeConfig& c, std::int64_t head_dim) {
    const auto channels = static_cast<double>(head_dim);
    const auto turning = [&](double turns) {
      return channels * std::log(static_cast<double>(c.original_context) / (turns * 2 * std::numbers::pi)) /
             (2 * std::log(c.theta));
    };
    low_ = std::max(std::floor(turning(c.beta_fast)), 0.0);
    high_ = std::min(std::ceil(turning(c.beta_slow)), channels - 1);
    if (high_ == low_) high_ += 0.001;
  }
  double stretched(std::int64_t i) const {
    return std::clamp((static_cast<double>(i) - low_) / (high_ - low_), 0.0, 1.0);
  }

 private:
  double low_, high_;
};

double llama3_keeps(const RopeConfig& c, double f) {
  const double turns = static_cast<double>(c.original_context) * f / (2 * std::numbers::pi);  // over that context
  return std::clamp((turns - c.low_freq_factor) / (c.high_freq_factor - c.low_freq_factor), 0.0, 1.0);
}

// Of channel i, whose frequency is f, how much is kept; the rest is divided by factor.
double kept(const RopeConfig& c, std::int64_t head_dim, std::int64_t i, double f) {
  switch (c.scaling) {
    case RopeScaling::none: return 1;
    case RopeScaling::linear: return 0;
    case RopeScaling::llama3: return llama3_keeps(c, f);
    case RopeScaling::yarn: return 1 - YarnRamp(c, head_dim).stretched(i);
  }
  return 1;
}

}  // namespace

std::vector<float> rope_frequencies(const RopeConfig& c, std::int64_t head_dim) {
  std::vector<float> out;
  for (std::int64_t i = 0; i < head_dim / 2; ++i) {
    const double f = std::pow(c.theta, -2.0 * static_cast<double>(i) / static_cast<double>(head_dim));
    const double keep = kept(c, head_dim, i, f);
    out.push_back(static_cast<float>(keep * f + (1 - keep) * f / c.factor));
  }
  return out;
}

double rope_attention_factor(const RopeConfig& c) {
  if (c.scaling != RopeScaling::yarn) return 1;
  return c.attention_factor > 0 ? c.attention_factor : 0.1 * std::log(c.factor) + 1;
}

}  // namespace ring
