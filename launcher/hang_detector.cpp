#include "launcher/hang_detector.h"

#include <algorithm>

#include "core/quantile.h"

namespace ring {
namespace {

constexpr std::size_t kWindow = 128;
// If two calls of update() are further apart, only this part of the time between them counts as silence.
constexpr HangRules::Seconds kLongestLook{1};

}  // namespace

bool HangDetector::update(const LifeSign& sign, Time now) {
  const bool progress = sign.progress != last_.progress || sign.activity != last_.activity;
  silence_ = progress ? Seconds(0) : silence_ + std::min<Seconds>(now - updated_, kLongestLook);
  updated_ = now;
  update_limits(sign, now);
  last_ = sign;
  return rules_.on && sign.activity != Activity::unlimited && silence_ > silence_limit();
}

void HangDetector::update_limits(const LifeSign& sign, Time now) {
  if (sign.activity != last_.activity) {
    if (last_.activity == Activity::save) longest_save_ = std::max<Seconds>(longest_save_, now - began_);
    began_ = now;
  }
  undisturbed_ &= sign.activity == Activity::step;
  if (sign.step == last_.step) return;
  const std::int64_t steps = sign.step - last_.step;
  for (std::int64_t i = 0; undisturbed_ && i < steps; ++i)
    add_step_time(Seconds(now - stepped_).count() / static_cast<double>(steps));
  stepped_ = now;
  undisturbed_ = sign.activity == Activity::step;
}

void HangDetector::add_step_time(double seconds) {
  if (steps_.size() < kWindow) steps_.push_back(0);
  steps_[next_++ % kWindow] = seconds;
  percentile_99_ = quantile(steps_, 0.99);
}

HangRules::Seconds HangDetector::step_limit() const {
  if (rules_.fixed) return *rules_.fixed;
  return std::max(rules_.min_limit, Seconds(rules_.factor * percentile_99_));
}

HangRules::Seconds HangDetector::silence_limit() const {
  if (steps_.size() < static_cast<std::size_t>(rules_.fixed ? 1 : rules_.enough)) return rules_.unmeasured;
  if (last_.activity == Activity::validation && last_.validations <= 1) return rules_.unmeasured;
  if (last_.activity != Activity::save) return step_limit();
  return last_.saves > 1 ? std::max(step_limit(), rules_.factor * longest_save_) : rules_.unmeasured;
}

}  // namespace ring
