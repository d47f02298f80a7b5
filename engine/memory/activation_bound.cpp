#include "engine/memory/activation_bound.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace ring {
namespace {

double as_double(std::size_t bytes) { return static_cast<double>(bytes); }

// Value and slope of the bound, a concave function of the price of one memory (device or host), at one price. The
// function lies below this tangent. other: bytes by which the plan for this price exceeds the other memory's budget.
struct Sample {
  double price, value, slope, other;
  double line_at(double x) const { return value + slope * (x - price); }
};

constexpr double kHighest = 4096;  // highest price, in nanoseconds per byte: slower than any disk

// Returns the maximum of a concave function: samples it where the tangents of two samples intersect, until it reaches
// the intersection. `other` of the result is the weighted mean of two plans, one over and one within the budget, with
// the weights at which their excess is 0.
template <class Fn>
Sample maximum(const Fn& at) {
  Sample a = at(0.0);
  if (a.slope <= 0) return a;
  Sample b = at(kHighest);
  if (b.slope > 0) return b;
  for (int i = 0; i < 60; ++i) {
    const double x = (b.value - b.slope * b.price - a.value + a.slope * a.price) / (a.slope - b.slope);
    const Sample c = at(x);
    const double share = -b.slope / (a.slope - b.slope);
    if (c.value >= a.line_at(x) - 1e-9 * std::abs(c.value) || i == 59)
      return {x, c.value, 0, share * a.other + (1 - share) * b.other};
    (c.slope > 0 ? a : b) = c;
  }
  return a;
}

}  // namespace

ActivationBound::ActivationBound(const PartOptions& parts, std::size_t base, ActivationBudget budget)
    : parts_(parts), base_(base), budget_(budget), tight_(tightest_part()), rest_(parts.size() + 1) {
  for (std::size_t p = 0; p <= parts.size(); ++p) rest_[p].resize(p == 0 ? 1 : parts[p - 1].size());
  choose_prices();
}

const PartOption& ActivationBound::option_before(std::size_t part, std::size_t before) const {
  return part == 0 ? kNoPart : parts_[part - 1][before];
}

// Returns the part with the highest peak when every part uses its fastest option.
std::size_t ActivationBound::tightest_part() const {
  std::size_t in_use = 0, max = 0, tightest = 0;
  const PartOption* before = &kNoPart;
  for (std::size_t p = 0; p < parts_.size(); ++p) {
    const PartOption& o = *std::ranges::min_element(parts_[p], {}, &PartOption::nanoseconds);
    if (in_use + o.peak() > max) max = in_use + o.peak(), tightest = p;
    in_use = in_use + o.kept - std::min(in_use + o.kept, before->host);
    before = &o;
  }
  return tightest;
}

// Returns the bytes that a part adds to the memory in use at the peak of part tight_: the bytes that it keeps if it
// comes before that part, its own peak if it is that part, else 0.
double ActivationBound::bytes(std::size_t part, const PartOption& before, const PartOption& o) const {
  if (part > tight_) return 0;
  if (part == tight_) return as_double(o.peak());
  return as_double(o.kept) - as_double(before.host);
}

double ActivationBound::cost(std::size_t part, const PartOption& before, const PartOption& o, double after) const {
  return static_cast<double>(o.nanoseconds + exposed(before, o)) + device_price_ * bytes(part, before, o) +
         host_price_ * as_double(o.host) + after;
}

std::size_t ActivationBound::best_option(std::size_t part, std::size_t before) const {
  const PartOption& b = option_before(part, before);
  std::size_t best = 0;
  double min = std::numeric_limits<double>::infinity();
  for (std::size_t o = 0; o < parts_[part].size(); ++o)
    if (const double c = cost(part, b, parts_[part][o], rest_[part + 1][o]); c < min) min = c, best = o;
  return best;
}

// Returns how far the cheapest plan exceeds the budgets.
ActivationBound::Excess ActivationBound::excess() const {
  Excess e{as_double(base_) - as_double(budget_.device), -as_double(budget_.host)};
  for (std::size_t p = 0, before = 0; p < parts_.size(); ++p) {
    const std::size_t o = best_option(p, before);
    e.device += bytes(p, option_before(p, before), parts_[p][o]);
    e.host += as_double(parts_[p][o].host);
    before = o;
  }
  return e;
}

ActivationBound::Excess ActivationBound::set_prices(double device, double host) {
  device_price_ = device;
  host_price_ = host;
  for (std::size_t p = parts_.size(); p-- > 0;)
    for (std::size_t before = 0; before < rest_[p].size(); ++before) {
      const std::size_t o = best_option(p, before);
      rest_[p][before] = cost(p, option_before(p, before), parts_[p][o], rest_[p + 1][o]);
    }
  return excess();
}

void ActivationBound::choose_prices() {
  const auto best_device = [&](double host) {
    return maximum([&](double device) {
      const Excess e = set_prices(device, host);
      return Sample{device, rest_nanoseconds(0, 0, base_, 0), e.device, e.host};
    });
  };
  const Sample host = maximum([&](double price) {
    const Sample device = best_device(price);
    return Sample{price, device.value, device.other, 0};
  });
  set_prices(best_device(host.price).price, host.price);
}

double ActivationBound::rest_nanoseconds(std::size_t part, std::size_t before, std::size_t in_use,
                                         std::size_t host) const {
  constexpr double kRounding = 1e-12;
  const double more = part > tight_ ? 0 : device_price_ * (as_double(in_use) - as_double(budget_.device));
  const double hosted = host_price_ * (as_double(host) - as_double(budget_.host));
  const double rest = rest_[part][before];
  return rest + more + hosted - kRounding * (std::abs(rest) + std::abs(more) + std::abs(hosted));
}

}  // namespace ring
