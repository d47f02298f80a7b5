#include "engine/memory/activation_solver.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "engine/memory/activation_segments.h"

namespace ring {
namespace {

// Evaluates one choice for every part, by definition; nullopt if the choice does not fit.
std::optional<ActivationChoice> evaluate(const PartOptions& parts, const std::vector<int>& options, std::size_t base,
                                         ActivationBudget budget) {
  ActivationChoice c{options, base, 0, 0};
  const auto chosen = [&](std::size_t i) { return parts[i][static_cast<std::size_t>(options[i])]; };
  for (std::size_t i = 0; i < parts.size(); ++i) {
    std::size_t in_use = base;  // while part i runs: offloads up to part i - 2 have ended
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

// Calls fn with every possible choice.
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

// In half of the instances, some options move all or part of their activations to the host.
PartOptions random_parts(std::mt19937& random) {
  const auto below = [&](std::uint32_t n) { return random() % n; };
  PartOptions parts(1 + below(6));
  const bool alike = below(2) == 0, hosted = below(2) == 0;  // like the equal blocks of a model
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
      const auto c = evaluate(parts, options, base, {budget.device, 1000});
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
    const auto same = evaluate(parts, found->options, base, budget);
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

TEST(ActivationSolver, TheMinimumBudgetIsTight) {
  std::mt19937 random(7);
  for (int n = 0; n < 2000; ++n) {
    const PartOptions parts = random_parts(random);
    const std::size_t base = random() % 10, host = 200;  // enough for any instance
    const std::size_t least = min_budget(parts, base, host);
    EXPECT_TRUE(solve_activations(parts, base, {least, host})) << "instance " << n;
    if (least > base) {
      EXPECT_FALSE(solve_activations(parts, base, {least - 1, host})) << "instance " << n;
    }
  }
}

TEST(ActivationSolver, EqualBlocksOfADeepModelAreSolvedQuickly) {
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

// Blocks of an 8B model over 128K tokens, in bytes and nanoseconds: saved or recomputed, each with and without
// offloading.
TEST(ActivationSolver, EqualBlocksWithAHostAreSolvedQuickly) {
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

TEST(ActivationSolver, AnEmptyModelHasAChoice) {
  EXPECT_TRUE(solve_activations({}, 5, {5, 0}));
  EXPECT_FALSE(solve_activations({}, 6, {5, 0}));
  EXPECT_EQ(min_budget({}, 6), 6u);
}

// Evaluates a choice by definition. While a part runs, memory holds what earlier parts saved: of a segment, its last
// block's output. While a segment is recomputed, memory holds that output's gradient instead, and what the segment's
// earlier blocks save.
ActivationChoice evaluate_segments(const PartOptions& parts, Segments s, std::size_t first,
                                   const std::vector<int>& of) {
  const std::size_t tail = first + s.count * s.blocks;
  const auto option = [&](std::size_t p) { return parts[p][static_cast<std::size_t>(of[p])]; };
  const auto output = [&](std::size_t p) { return std::ranges::min(parts[p], {}, &PartOption::kept).kept; };
  ActivationChoice c{of, 5, 0, 0};
  for (std::size_t p = 0; p < parts.size(); ++p) {
    const bool again = p >= first && p < tail;
    const std::size_t start = again ? first + (p - first) / s.blocks * s.blocks : p, end = start + s.blocks;
    std::size_t in_use = 5;
    for (std::size_t q = 0; q < start; ++q) {
      const bool within = q >= first && q < tail;
      if (!within) in_use += option(q).kept;
      if (within && (q - first) % s.blocks == s.blocks - 1) in_use += output(q);
    }
    c.nanoseconds += option(p).nanoseconds;
    if (again) {
      in_use += output(end - 1);
      c.peak = std::max(c.peak, in_use + std::ranges::min(parts[p], {}, &PartOption::forward_peak).forward_peak);
      c.nanoseconds += parts[p].front().forward;
      for (std::size_t q = start; q < p; ++q) in_use += option(q).kept;
    }
    c.peak = std::max(c.peak, in_use + option(p).peak());
  }
  return c;
}

// Some parts are in segments: their evaluation follows the definition, and the solver finds the fastest choice that
// fits.
TEST(ActivationSegments, AreEvaluatedAndChosenAsDefined) {
  std::mt19937 random(11);
  const auto number = [&](std::size_t most) { return static_cast<std::size_t>(random()) % (most + 1); };
  int solved = 0;
  for (int instance = 0; instance < 10'000; ++instance) {
    const std::size_t first = number(1), ways = 1 + number(1);
    const Segments s{1 + number(1), 2 + number(1)};
    const std::size_t blocks = s.count * s.blocks;
    PartOptions parts(first + blocks + 1 + number(1));
    for (auto& options : parts)
      for (std::size_t o = 0; o < ways; ++o) {
        const std::size_t kept = number(20);
        options.push_back({.kept = kept,
                           .forward_peak = kept + number(20),
                           .backward_peak = number(40),
                           .nanoseconds = static_cast<std::int64_t>(number(9)),
                           .forward = static_cast<std::int64_t>(number(9))});
      }
    const PartOptions with = in_segments(parts, s, first, ways);
    ASSERT_EQ(with.size(), parts.size() - blocks + s.count);
    const ActivationBudget budget{20 + number(80), 0};
    std::optional<std::int64_t> fastest;
    for_all_choices(with, [&](const std::vector<int>& options) {
      std::vector<int> of;
      for (std::size_t i = 0; i < options.size(); ++i)
        of.insert(of.end(), i >= first && i < first + s.count ? s.blocks : 1, options[i]);
      const ActivationChoice defined = evaluate_segments(parts, s, first, of),
                             found = evaluate_options(with, options, 5);
      ASSERT_EQ(found.peak, defined.peak) << instance;
      ASSERT_EQ(found.nanoseconds, defined.nanoseconds) << instance;
      if (defined.peak <= budget.device) fastest = std::min(fastest.value_or(1'000'000), defined.nanoseconds);
    });
    const auto choice = solve_activations(with, 5, budget);
    ASSERT_EQ(choice.has_value(), fastest.has_value()) << instance;
    if (!choice) continue;
    EXPECT_EQ(choice->nanoseconds, *fastest) << instance;
    ++solved;
  }
  EXPECT_GT(solved, 1000);
}

TEST(ActivationSegments, LeaveTheLastBlockOut) {
  EXPECT_TRUE(segments_of(2).empty());
  for (const std::size_t blocks : {3, 8, 13})
    for (const Segments& s : segments_of(blocks)) EXPECT_LT(s.count * s.blocks, blocks);
  EXPECT_EQ(segments_of(5).size(), 4u);  // 1 or 2 of 2, 1 of 3, 1 of 4
}

}  // namespace
}  // namespace ring
