#include "engine/memory/activation_solver.h"

#include <algorithm>
#include <limits>
#include <map>
#include <tuple>

#include "engine/memory/activation_bound.h"

namespace ring {
namespace {

constexpr std::size_t kAll = std::numeric_limits<std::size_t>::max();

// A plan for the parts so far.
struct Partial {
  std::size_t in_use, host;  // bytes in use when the next part begins; bytes of all parts on the host
  std::int64_t nanoseconds;
  // Option of the last part; index of the plan without the last part, among the plans that end one part earlier.
  std::size_t option, before;
};
using Front = std::vector<Partial>;

// Keeps a Pareto front. Plans are added in the order of increasing time: add() returns true if the plan needs less
// device memory or less host memory than every plan added before it.
class Unbeaten {
 public:
  bool add(const Partial& p) {
    auto next = hosts_.upper_bound(p.in_use);
    if (next != hosts_.begin() && std::prev(next)->second <= p.host) return false;
    while (next != hosts_.end() && next->second >= p.host) next = hosts_.erase(next);
    hosts_[p.in_use] = p.host;
    return true;
  }

 private:
  std::map<std::size_t, std::size_t> hosts_;  // minimum bytes on the host for each number of bytes in use
};

class Solver {
 public:
  Solver(const PartOptions& parts, std::size_t base, ActivationBudget budget)
      : parts_(parts), base_(base), budget_(budget), room_(parts.size() + 1), min_host_(parts.size() + 1) {
    find_room();
  }

  bool feasible() {
    timed_ = false;
    search(kAll);
    return !fronts_.back().empty();
  }

  // A quick search over few plans finds a good plan, whose time then bounds the complete search.
  std::optional<ActivationChoice> solve() {
    if (!feasible()) return {};
    ActivationChoice choice = best();
    const ActivationBound bound(parts_, base_, budget_);
    bound_ = &bound;
    timed_ = true;
    for (const std::size_t max : {std::size_t{32}, std::size_t{256}, kAll}) {
      known_ = choice.nanoseconds;
      if (bound.rest_nanoseconds(0, 0, base_, 0) > static_cast<double>(known_) - 1) break;
      const bool all = search(max);
      if (!fronts_.back().empty()) choice = best();
      if (all) break;
    }
    return choice;
  }

 private:
  const PartOption& option_before(std::size_t part, const Partial& p) const {
    return part == 0 ? kNoPart : parts_[part - 1][p.option];
  }
  bool some_room() const { return static_cast<std::int64_t>(base_) <= room_[0][0] && min_host_[0] <= budget_.host; }

  // Computes limits for each part, from the last part to the first. room_[part][previous part's option]: maximum bytes
  // that may be in use when the part begins, so that this and all later parts can fit into the device. min_host_[part]:
  // minimum host bytes of this and all later parts.
  void find_room() {
    const auto device = static_cast<std::int64_t>(budget_.device);
    room_.back().assign(parts_.empty() ? 1 : parts_.back().size(), device);
    for (std::size_t p = parts_.size(); p-- > 0;) {
      const auto min = std::ranges::min_element(parts_[p], {}, &PartOption::host);
      min_host_[p] = min_host_[p + 1] + min->host;
      for (std::size_t b = 0; b < (p == 0 ? 1 : parts_[p - 1].size()); ++b)
        room_[p].push_back(room_before(p, p == 0 ? kNoPart : parts_[p - 1][b]));
    }
  }
  std::int64_t room_before(std::size_t part, const PartOption& before) const {
    std::int64_t room = -1;
    for (std::size_t o = 0; o < parts_[part].size(); ++o) {
      const PartOption& option = parts_[part][o];
      const auto own = static_cast<std::int64_t>(budget_.device) - static_cast<std::int64_t>(option.peak());
      const auto later =
          room_[part + 1][o] - static_cast<std::int64_t>(option.kept) + static_cast<std::int64_t>(before.host);
      room = std::max(room, std::min(own, later));
    }
    return room;
  }

  // Finds all plans that fit, but keeps at most `max` plans of each kind. Returns true if no plan was dropped.
  bool search(std::size_t max) {
    bool all = true;
    fronts_.assign(1, {{base_, 0, 0, 0, 0}});
    if (!some_room()) fronts_.back().clear();
    for (std::size_t p = 0; p < parts_.size(); ++p) {
      Front next;
      for (Front& alike : extended(p)) {
        alike = unbeaten(std::move(alike));
        all &= cut(alike, p + 1, max);
        next.insert(next.end(), alike.begin(), alike.end());
      }
      fronts_.push_back(std::move(next));
    }
    return all;
  }

  // Groups plans by the only property that affects the following parts: the bytes that their last part offloads.
  std::vector<Front> extended(std::size_t part) const {
    std::map<std::tuple<std::size_t, std::int64_t>, Front> by_host;
    const Front& front = fronts_.back();
    for (std::size_t o = 0; o < parts_[part].size(); ++o) {
      Front& alike = by_host[{parts_[part][o].host, parts_[part][o].transfer}];
      for (std::size_t i = 0; i < front.size(); ++i)
        if (const Partial next = extend(part, front[i], i, o); promising(part + 1, next)) alike.push_back(next);
    }
    std::vector<Front> all;
    for (auto& [host, front_of_it] : by_host) all.push_back(std::move(front_of_it));
    return all;
  }
  Partial extend(std::size_t part, const Partial& p, std::size_t at, std::size_t option) const {
    const PartOption &before = option_before(part, p), &o = parts_[part][option];
    const std::int64_t time = timed_ ? p.nanoseconds + o.nanoseconds + exposed(before, o) : 0;
    if (p.in_use + o.peak() > budget_.device) return {kAll, 0, 0, 0, 0};
    const std::size_t kept = p.in_use + o.kept;
    return {kept - std::min(kept, before.host), p.host + o.host, time, option, at};
  }
  // Returns true if the plan may still fit and be at least as fast as the fastest known plan.
  bool promising(std::size_t part, const Partial& p) const {
    if (p.in_use == kAll || static_cast<std::int64_t>(p.in_use) > room_[part][p.option]) return false;
    if (p.host + min_host_[part] > budget_.host) return false;
    return !timed_ || at_least(part, p) <= static_cast<double>(known_) + 0.5;
  }
  double at_least(std::size_t part, const Partial& p) const {
    return static_cast<double>(p.nanoseconds) + bound_->rest_nanoseconds(part, p.option, p.in_use, p.host);
  }

  static Front unbeaten(Front all) {
    std::ranges::sort(all, {},
                      [](const Partial& p) { return std::tuple(p.nanoseconds, p.in_use, p.host, p.option, p.before); });
    Unbeaten others;
    std::erase_if(all, [&](const Partial& p) { return !others.add(p); });
    return all;
  }
  bool cut(Front& front, std::size_t part, std::size_t max) const {
    if (front.size() <= max) return true;
    std::ranges::nth_element(front, front.begin() + static_cast<std::ptrdiff_t>(max), {},
                             [&](const Partial& p) { return at_least(part, p); });
    front.resize(max);
    return false;
  }

  ActivationChoice best() const {
    const Partial* at = &*std::ranges::min_element(
        fronts_.back(), {}, [](const Partial& p) { return std::tuple(p.nanoseconds, p.host, p.in_use); });
    std::vector<int> options(parts_.size());
    for (std::size_t p = parts_.size(); p > 0; --p) {
      options[p - 1] = static_cast<int>(at->option);
      at = &fronts_[p - 1][at->before];
    }
    return evaluate_options(parts_, std::move(options), base_);
  }

  const PartOptions& parts_;
  const std::size_t base_;
  const ActivationBudget budget_;
  std::vector<std::vector<std::int64_t>> room_;
  std::vector<std::size_t> min_host_;
  const ActivationBound* bound_ = nullptr;
  bool timed_ = true;       // false while searching for any plan that fits, fast or slow
  std::int64_t known_ = 0;  // time of the fastest plan so far, in nanoseconds
  std::vector<Front> fronts_;
};

}  // namespace

ActivationChoice evaluate_options(const PartOptions& parts, std::vector<int> options, std::size_t base) {
  ActivationChoice c{.options = std::move(options), .peak = base};
  const PartOption* before = &kNoPart;
  std::size_t in_use = base;
  for (std::size_t p = 0; p < parts.size(); ++p) {
    const PartOption& o = parts[p][static_cast<std::size_t>(c.options[p])];
    c.peak = std::max(c.peak, in_use + o.peak());
    c.host += o.host;
    c.nanoseconds += o.nanoseconds + exposed(*before, o);
    in_use = in_use + o.kept - std::min(in_use + o.kept, before->host);
    before = &o;
  }
  return c;
}

std::optional<ActivationChoice> solve_activations(const PartOptions& parts, std::size_t base, ActivationBudget budget) {
  return Solver(parts, base, budget).solve();
}

std::size_t min_budget(const PartOptions& parts, std::size_t base, std::size_t host) {
  std::size_t min = base, max = base;  // `max` grows to a budget that suffices for any options
  for (const auto& options : parts) {
    std::size_t peak = 0;
    for (const PartOption& o : options) peak = std::max({peak, o.peak(), o.kept});
    max += peak;
  }
  while (min < max) {
    const std::size_t middle = min + (max - min) / 2;
    if (Solver(parts, base, {middle, host}).feasible())
      max = middle;
    else
      min = middle + 1;
  }
  return min;
}

}  // namespace ring
