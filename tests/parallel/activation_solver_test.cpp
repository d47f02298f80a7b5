#include "parallel/plan/activation_solver.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

namespace ring {
namespace {

// The definition, for one choice of every part; nothing: it does not fit.
std::optional<ActivationChoice> judge(const PartOptions& parts, const std::vector<int>& options, std::size_t base,
                                      ActivationBudget budget) {
  ActivationChoice c{options, base, 0, 0};
  const auto chosen = [&](std::size_t i) { return parts[i][static_cast<std::size_t>(options[i])]; };
  for (std::size_t i = 0; i < parts.size(); ++i) {
    std::size_t in_use = base;  // while part i runs, forward or backward: what left two parts ago is away
    for (std::size_t j = 0; j < i; ++j) in_use += chosen(j).kept;
    for (std::size_t j = 0; j + 1 < i; ++j) in_use -= chosen(j).host;
    c.peak = std::max({c.peak, in_use + chosen(i).forward_peak, in_use + chosen(i).backward_peak});
    c.host += chosen(i).host;
    c.nanoseconds += chosen(i).nanoseconds;
    if (i == 0) continue;
    c.nanoseconds += std::max<std::int64_t>(0, chosen(i - 1).transfer - chosen(i).forward);
    c.nanoseconds += std::max<std::int64_t>(0, chosen(i - 1).transfer - chosen(i).backward);
  }
  if (c.peak > budget.device || c.host > budget.host) return {};
  return c;
}

// Every choice there is, one after the other.
template <class Fn>
void for_all_choices(const PartOptions& parts, const Fn& fn) {
  std::vector<int> options(parts.size());
  for (std::size_t i = 0; i < parts.size();) {
    fn(options);
    for (i = 0; i < parts.size(); ++i) {
      if (++options[i] < static_cast<int>(parts[i].size())) break;
      options[i] = 0;
    }
  }
}

// Half of them with ways that move what they keep, or a part of it.
PartOptions random_parts(std::mt19937& random) {
  const auto below = [&](std::uint32_t n) { return random() % n; };
  PartOptions parts(1 + below(6));
  const bool alike = below(2) == 0, hosted = below(2) == 0;  // as the blocks of a model are
  for (std::size_t i = 0; i < parts.size(); ++i) {
    if (alike && i > 0) {
      parts[i] = parts[0];
      continue;
    }
    parts[i].resize(1 + below(4));
    const std::int64_t forward = below(6);
    for (PartOption& o : parts[i]) {
      o.kept = below(20);
      o.forward_peak = o.kept + below(15);
      o.backward_peak = o.kept + below(15);
      o.nanoseconds = below(10);
      o.forward = forward;
      o.backward = 2 * forward + below(4);
      if (!hosted || below(2)) continue;
      o.host = o.kept - std::min<std::size_t>(o.kept, below(6));
      o.transfer = static_cast<std::int64_t>(o.host) * (1 + below(2)) / 2;
    }
  }
  return parts;
}

TEST(ActivationSolver, EqualsBruteForceUnderBothBudgets) {
  std::mt19937 random(2026);
  int feasible = 0, refused = 0, moved = 0, host_binds = 0;
  for (int n = 0; n < 10000; ++n) {
    const PartOptions parts = random_parts(random);
    const std::size_t base = random() % 10;
    const ActivationBudget budget{base + random() % 80, random() % 40};
    std::optional<std::int64_t> best, unbound;
    for_all_choices(parts, [&](const std::vector<int>& options) {
      const auto c = judge(parts, options, base, {budget.device, 1000});
      if (!c) return;
      if (!unbound || c->nanoseconds < *unbound) unbound = c->nanoseconds;
      if (c->host <= budget.host && (!best || c->nanoseconds < *best)) best = c->nanoseconds;
    });
    const auto found = solve_activations(parts, base, budget);
    ASSERT_EQ(found.has_value(), best.has_value()) << "instance " << n;
    ++(best ? feasible : refused);
    host_binds += unbound != best;
    if (!found) continue;
    ASSERT_EQ(found->nanoseconds, *best) << "instance " << n;
    const auto same = judge(parts, found->options, base, budget);
    ASSERT_TRUE(same) << "instance " << n << ": over the budget";
    EXPECT_EQ(same->peak, found->peak);
    EXPECT_EQ(same->host, found->host);
    EXPECT_EQ(same->nanoseconds, found->nanoseconds);
    moved += found->host > 0;
  }
  EXPECT_GT(feasible, 2000);
  EXPECT_GT(refused, 2000);
  EXPECT_GT(moved, 1000);
  EXPECT_GT(host_binds, 300);
}

TEST(ActivationSolver, TheLeastBudgetIsTheBorder) {
  std::mt19937 random(7);
  for (int n = 0; n < 2000; ++n) {
    const PartOptions parts = random_parts(random);
    const std::size_t base = random() % 10, host = 200;  // enough for any of them
    const std::size_t least = least_budget(parts, base, host);
    EXPECT_TRUE(solve_activations(parts, base, {least, host})) << "instance " << n;
    if (least > base) {
      EXPECT_FALSE(solve_activations(parts, base, {least - 1, host})) << "instance " << n;
    }
  }
}

TEST(ActivationSolver, EqualBlocksOfADeepModelAreQuick) {
  const std::vector<PartOption> block = {
      {40, 44, 60, 0}, {31, 44, 61, 3}, {22, 44, 62, 5}, {9, 44, 60, 11}, {4, 44, 70, 29}};
  const PartOptions parts(126, block);
  for (const std::size_t budget : {700u, 1200u, 2500u, 4000u, 6000u}) {
    const auto found = solve_activations(parts, 10, {budget, 0});
    ASSERT_TRUE(found);
    EXPECT_LE(found->peak, budget);
    EXPECT_EQ(solve_activations(parts, 10, {budget, 0})->options, found->options);
  }
}

// Blocks of an 8B model over 128K tokens, in bytes and nanoseconds, kept or computed again, and each of these moved.
TEST(ActivationSolver, EqualBlocksWithAHostAreQuick) {
  std::vector<PartOption> block;
  const auto add = [&](double gib, double backward_gib, double ms) {
    PartOption o;
    o.kept = static_cast<std::size_t>(gib * (1 << 30));
    o.forward_peak = o.kept + (std::size_t{3} << 30);
    o.backward_peak = static_cast<std::size_t>((gib + backward_gib) * (1 << 30));
    o.nanoseconds = static_cast<std::int64_t>(ms * 1e6);
    o.forward = 140'000'000;
    o.backward = 350'000'000 + o.nanoseconds;
    block.push_back(o);
    o.host = o.kept - (std::size_t{1} << 24);
    o.transfer = static_cast<std::int64_t>(static_cast<double>(o.host) / 55);
    o.nanoseconds += o.transfer / 70;
    block.push_back(o);
  };
  add(15.1, 8, 0), add(13.6, 8.2, 9.7), add(4.6, 17, 71.3), add(3.05, 18, 81.1), add(2.03, 20, 132.7);
  for (const std::size_t layers : {32u, 80u})
    for (const std::size_t host : {0u, 110u})
      for (const std::size_t device : {70u, 90u}) {
        const auto found =
            solve_activations(PartOptions(layers, block), std::size_t{1} << 30, {device << 30, host << 30});
        if (!found) continue;
        EXPECT_LE(found->peak, device << 30);
        EXPECT_LE(found->host, host << 30);
      }
}

TEST(ActivationSolver, NothingToChooseIsAChoice) {
  EXPECT_TRUE(solve_activations({}, 5, {5, 0}));
  EXPECT_FALSE(solve_activations({}, 6, {5, 0}));
  EXPECT_EQ(least_budget({}, 6), 6u);
}

}  // namespace
}  // namespace ring
