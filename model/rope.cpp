#include "model/rope.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace ring {
namespace {

// YaRN's ramp over the channels: the share of a channel's frequency that is divided by the factor. It rises from 0, at
// the channel that turns beta_fast times over the original context, to 1, at the channel that turns beta_slow times.
// Both ends are rounded to whole channels, as in transformers.
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
  // Rotations over the original context.
  const double turns = static_cast<double>(c.original_context) * f / (2 * std::numbers::pi);
  return std::clamp((turns - c.low_freq_factor) / (c.high_freq_factor - c.low_freq_factor), 0.0, 1.0);
}

// Returns the share of channel i's frequency f that stays as it is; the rest is divided by the scaling factor.
double kept(const RopeConfig& c, std::int64_t head_dim, std::int64_t i, double f) {
  switch (c.scaling) {
    case RopeScaling::none:
    case RopeScaling::dynamic: return 1;
    case RopeScaling::linear: return 0;
    case RopeScaling::llama3: return llama3_keeps(c, f);
    case RopeScaling::yarn: return 1 - YarnRamp(c, head_dim).stretched(i);
  }
  return 1;
}

// Returns theta for a sequence of this length, as transformers' _compute_dynamic_ntk_parameters does: the slowest
// channel turns factor * length / original - factor + 1 times as slowly, the fastest is unchanged.
double theta_at(const RopeConfig& c, std::int64_t head_dim, std::int64_t length) {
  if (c.scaling != RopeScaling::dynamic || length <= c.original_context) return c.theta;
  const double times = static_cast<double>(length) / static_cast<double>(c.original_context);
  const auto channels = static_cast<double>(head_dim);
  return c.theta * std::pow(c.factor * times - (c.factor - 1), channels / (channels - 2));
}

// Returns each document's length, including its `seen` tokens.
std::vector<std::int64_t> lengths_of(const Sequences& s, const std::vector<std::int32_t>& seen) {
  std::vector<std::int64_t> lengths;
  for (std::size_t b = 0; b + 1 < s.offsets.size(); ++b) {
    const std::int64_t here = s.lengths.empty() ? s.offsets[b + 1] - s.offsets[b] : s.lengths[b];
    lengths.push_back(here + (seen.empty() ? 0 : seen[b]));
  }
  return lengths;
}

}  // namespace

std::vector<float> rope_frequencies(const RopeConfig& c, std::int64_t head_dim, std::int64_t length) {
  const std::int64_t channels = rotary_channels(c, head_dim);
  const double theta = theta_at(c, channels, length);
  std::vector<float> out;
  for (std::int64_t i = 0; i < channels / 2; ++i) {
    const double f = std::pow(theta, -2.0 * static_cast<double>(i) / static_cast<double>(channels));
    const double keep = kept(c, channels, i, f);
    out.push_back(static_cast<float>(keep * f + (1 - keep) * f / c.factor));
  }
  return out;
}

Tensor stretched_frequencies(const RopeConfig& c, std::int64_t head_dim, const Sequences& s,
                             const std::vector<std::int32_t>& seen, const ExecContext& ctx) {
  if (c.scaling != RopeScaling::dynamic || rotary_channels(c, head_dim) == 0) return {};
  if (s.shards) {
    for (const Span& d : s.shards->documents)
      if (d.count > c.original_context)
        fail("model.rope.scaling: dynamic stretches sequences of more than ", c.original_context,
             " tokens, but not if ",
             "they are divided among ranks or into chunks. Use a shorter context, or whole sequences: one process, ",
             "without train.sequence_chunk or --sequence-chunk");
    return {};
  }
  const std::vector<std::int64_t> lengths = lengths_of(s, seen);
  if (lengths.empty() || std::ranges::max(lengths) <= c.original_context) return {};
  std::vector<float> all;
  for (const std::int64_t length : lengths) {
    const std::vector<float> f = rope_frequencies(c, head_dim, length);
    all.insert(all.end(), f.begin(), f.end());
  }
  return from_host(all, ctx.stream).view({std::ssize(lengths), rotary_channels(c, head_dim) / 2});
}

double rope_attention_factor(const RopeConfig& c) {
  if (c.scaling != RopeScaling::yarn) return 1;
  return c.attention_factor > 0 ? c.attention_factor : 0.1 * std::log(c.factor) + 1;
}

}  // namespace ring
