#include "parallel/plan/activation_solver.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

namespace ring {
namespace {

using Parts = std::vector<std::vector<PartOption>>;

// The definition, for one choice of every part; nothing: it does not fit.
std::optional<ActivationChoice> judge(const Parts& parts, const std::vector<int>& options, std::size_t base,
                                      std::size_t budget) {
  ActivationChoice c{options, base, 0};
  std::size_t kept = base;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    const PartOption& o = parts[i][static_cast<std::size_t>(options[i])];
    c.peak = std::max({c.peak, kept + o.forward_peak, kept + o.backward_peak});
    c.nanoseconds += o.nanoseconds;
    kept += o.kept;
  }
  if (c.peak > budget) return {};
  return c;
}

// Every choice there is, one after the other.
template <class Fn>
void for_all_choices(const Parts& parts, const Fn& fn) {
  std::vector<int> options(parts.size());
  for (std::size_t i = 0; i < parts.size();) {
    fn(options);
    for (i = 0; i < parts.size(); ++i) {
      if (++options[i] < static_cast<int>(parts[i].size())) break;
      options[i] = 0;
    }
  }
}

Parts random_parts(std::mt19937& random) {
  const auto below = [&](std::uint32_t n) { return random() % n; };
  Parts parts(1 + below(6));
  const bool alike = below(2) == 0;  // as the blocks of a model are
  for (std::size_t i = 0; i < parts.size(); ++i) {
    if (alike && i > 0) {
      parts[i] = parts[0];
      continue;
    }
    parts[i].resize(1 + below(4));
    for (PartOption& o : parts[i]) {
      o.kept = below(20);
      o.forward_peak = o.kept + below(15);
      o.backward_peak = o.kept + below(15);
      o.nanoseconds = below(10);
    }
  }
  return parts;
}

TEST(ActivationSolver, EqualsBruteForce) {
  std::mt19937 random(2026);
  int feasible = 0, refused = 0;
  for (int n = 0; n < 10000; ++n) {
    const Parts parts = random_parts(random);
    const std::size_t base = random() % 10, budget = base + random() % 80;
    std::optional<std::int64_t> best;
    for_all_choices(parts, [&](const std::vector<int>& options) {
      const auto c = judge(parts, options, base, budget);
      if (c && (!best || c->nanoseconds < *best)) best = c->nanoseconds;
    });
    const auto found = solve_activations(parts, base, budget);
    ASSERT_EQ(found.has_value(), best.has_value()) << "instance " << n;
    ++(best ? feasible : refused);
    if (!found) continue;
    ASSERT_EQ(found->nanoseconds, *best) << "instance " << n;
    const auto judged = judge(parts, found->options, base, budget);
    ASSERT_TRUE(judged) << "instance " << n << ": over the budget";
    EXPECT_EQ(judged->peak, found->peak);
    EXPECT_EQ(judged->nanoseconds, found->nanoseconds);
  }
  EXPECT_GT(feasible, 2000);
  EXPECT_GT(refused, 2000);
}

TEST(ActivationSolver, TheLeastBudgetIsTheBorder) {
  std::mt19937 random(7);
  for (int n = 0; n < 2000; ++n) {
    const Parts parts = random_parts(random);
    const std::size_t base = random() % 10, least = least_budget(parts, base);
    EXPECT_TRUE(solve_activations(parts, base, least)) << "instance " << n;
    if (least > base) {
      EXPECT_FALSE(solve_activations(parts, base, least - 1)) << "instance " << n;
    }
  }
}

TEST(ActivationSolver, EqualBlocksOfADeepModelAreQuick) {
  const std::vector<PartOption> block = {
      {40, 44, 60, 0}, {31, 44, 61, 3}, {22, 44, 62, 5}, {9, 44, 60, 11}, {4, 44, 70, 29}};
  const Parts parts(126, block);
  for (const std::size_t budget : {700u, 1200u, 2500u, 4000u, 6000u}) {
    const auto found = solve_activations(parts, 10, budget);
    ASSERT_TRUE(found);
    EXPECT_LE(found->peak, budget);
    EXPECT_EQ(solve_activations(parts, 10, budget)->options, found->options);
  }
}

TEST(ActivationSolver, NothingToChooseIsAChoice) {
  EXPECT_TRUE(solve_activations({}, 5, 5));
  EXPECT_FALSE(solve_activations({}, 6, 5));
  EXPECT_EQ(least_budget({}, 6), 6u);
}

}  // namespace
}  // namespace ring
