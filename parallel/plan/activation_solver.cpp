#include "parallel/plan/activation_solver.h"

#include <algorithm>
#include <limits>
#include <tuple>

namespace ring {
namespace {

// The parts so far, treated in some way.
struct Partial {
  std::size_t kept, peak;
  std::int64_t nanoseconds;
  int before, option;  // in the front of the part before; of the last part
};
using Front = std::vector<Partial>;

std::size_t peak_of(const PartOption& o) { return std::max(o.forward_peak, o.backward_peak); }

// Those that nothing beats in both bytes and time: later parts fit whenever they fit behind one that keeps more.
Front pareto(Front all) {
  std::ranges::sort(all, {},
                    [](const Partial& p) { return std::tuple(p.kept, p.nanoseconds, p.peak, p.before, p.option); });
  Front front;
  for (const Partial& p : all)
    if (front.empty() || p.nanoseconds < front.back().nanoseconds) front.push_back(p);
  return front;
}

Front extend(const Front& front, const std::vector<PartOption>& options, std::size_t budget) {
  Front all;
  for (std::size_t i = 0; i < front.size(); ++i)
    for (std::size_t k = 0; k < options.size(); ++k) {
      const std::size_t peak = front[i].kept + peak_of(options[k]);
      if (peak > budget) continue;
      all.push_back({front[i].kept + options[k].kept, std::max(front[i].peak, peak),
                     front[i].nanoseconds + options[k].nanoseconds, static_cast<int>(i), static_cast<int>(k)});
    }
  return pareto(std::move(all));
}

// Whether the way that keeps least, as far as it fits, leads to the end: no other one leads further.
bool fits(const std::vector<std::vector<PartOption>>& parts, std::size_t base, std::size_t budget) {
  std::size_t kept = base;
  for (const auto& options : parts) {
    std::size_t least = std::numeric_limits<std::size_t>::max();
    for (const PartOption& o : options)
      if (kept + peak_of(o) <= budget) least = std::min(least, o.kept);
    if (least == std::numeric_limits<std::size_t>::max()) return false;
    kept += least;
  }
  return kept <= budget;
}

}  // namespace

std::optional<ActivationChoice> solve_activations(const std::vector<std::vector<PartOption>>& parts, std::size_t base,
                                                  std::size_t budget) {
  if (base > budget) return {};
  std::vector<Front> fronts{{{base, base, 0, -1, -1}}};
  for (const auto& options : parts) fronts.push_back(extend(fronts.back(), options, budget));
  const Front& last = fronts.back();
  if (last.empty()) return {};
  std::size_t at = last.size() - 1;  // keeps most, takes least time
  ActivationChoice choice{
      .options = std::vector<int>(parts.size()), .peak = last[at].peak, .nanoseconds = last[at].nanoseconds};
  for (std::size_t part = parts.size(); part > 0; --part) {
    choice.options[part - 1] = fronts[part][at].option;
    at = static_cast<std::size_t>(fronts[part][at].before);
  }
  return choice;
}

std::size_t least_budget(const std::vector<std::vector<PartOption>>& parts, std::size_t base) {
  std::size_t most = base;  // enough for any way
  for (const auto& options : parts) {
    std::size_t peak = 0, kept = 0;
    for (const PartOption& o : options) {
      peak = std::max(peak, peak_of(o));
      kept = std::max(kept, o.kept);
    }
    most += std::max(peak, kept);
  }
  std::size_t least = base;
  while (least < most) {
    const std::size_t middle = least + (most - least) / 2;
    if (fits(parts, base, middle))
      most = middle;
    else
      least = middle + 1;
  }
  return least;
}

}  // namespace ring
