#include "trainer/step_guard.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "core/json.h"
#include "core/quantile.h"

namespace ring {
namespace {

double limit_of(const std::vector<double>& values, double score) {
  const double middle = median(values);
  std::vector<double> deviations;
  for (const double v : values) deviations.push_back(std::fabs(v - middle));
  return middle + score * std::max(1.4826 * median(deviations), StepGuard::kMinSpread * std::fabs(middle));
}

// Stores NaN as null, since JSON has no NaN.
nlohmann::json number(double x) { return std::isfinite(x) ? nlohmann::json(x) : nlohmann::json(nullptr); }
double number(const nlohmann::json& j) { return j.is_null() ? std::nan("") : j.get<double>(); }

}  // namespace

// Keeps two steps more than limits() uses, since limits() may have to ignore the newest steps.
void StepGuard::accept(std::int64_t step, double loss, double norm) {
  if (config_.spike_deviations == 0) return;
  history_.push_back({step, loss, norm});
  if (history_.size() > kHistory + 2) history_.pop_front();
  update_state();
}

StepGuard::Limits StepGuard::limits(std::int64_t known) const {
  std::vector<double> losses, norms;
  for (auto it = history_.rbegin(); it != history_.rend() && losses.size() < kHistory; ++it) {
    if (it->step > known) continue;
    losses.push_back(it->loss);
    norms.push_back(it->norm);
  }
  if (config_.spike_deviations == 0 || losses.size() < kMinHistory) return {};
  return {limit_of(losses, config_.spike_deviations), limit_of(norms, config_.spike_deviations)};
}

OnBadStep StepGuard::action_for_bad_step(std::int64_t step) const {
  const auto recent =
      std::ranges::count_if(bad_, [&](const BadStep& b) { return b.step > step - config_.bad_step_window; });
  return recent >= config_.max_bad_steps ? OnBadStep::stop : config_.on_bad_step;
}

void StepGuard::update_state() {
  nlohmann::json j;
  for (const Accepted& a : history_) j["accepted"].push_back({a.step, a.loss, a.norm});
  for (const BadStep& b : bad_)
    j["bad"].push_back({b.step, b.first_sample, b.end_sample, number(b.loss), number(b.norm)});
  state_ = j.is_null() ? "{}" : j.dump();
}

void StepGuard::on_state_loaded() {
  const auto j = parse_own_json<nlohmann::json>(state_);
  history_.clear();
  bad_.clear();
  for (const auto& a : j.value("accepted", nlohmann::json::array())) history_.push_back({a[0], a[1], a[2]});
  for (const auto& b : j.value("bad", nlohmann::json::array()))
    bad_.push_back({b[0], b[1], b[2], number(b[3]), number(b[4])});
}

void StepGuard::on_rollback(std::vector<BadStep> known_before) {
  on_state_loaded();
  bad_ = std::move(known_before);
  update_state();
}

}  // namespace ring
