// Balanced layouts contain every token exactly once, give all ranks the same number of tokens, and keep each rank's
// number of pairs within a bound around the mean.

#include "parallel/context/balance.h"

#include <gtest/gtest.h>

#include <cmath>
#include <numeric>
#include <random>

#include "kernels/attention/blocks.h"
#include "parallel/imbalance.h"
#include "tests/parallel/context_problem.h"

namespace ring::test {
namespace {

constexpr double kTolerance = 0.005;  // as in balance.cpp
constexpr std::int64_t kBalancedHeads = 2;

// Returns the largest possible work of a rank. A window's work differs from the mean of what remains by at most e =
// max(half of the largest block, kTolerance * mean). If a window takes e too little, the mean of the k remaining ranks
// rises by e / k.
double max_work(const std::vector<double>& work, int ranks) {
  double mean = std::accumulate(work.begin(), work.end(), 0.0) / ranks, most = 0;
  for (int left = ranks - 1; left >= 0; --left) {
    const double e = left == 0 ? 0 : std::max(*std::ranges::max_element(work) / 2, kTolerance * mean);
    most = std::max(most, mean + e);
    if (left > 0) mean += e / left;
  }
  return most * (1 + 1e-9);
}

double work_of(const std::vector<double>& work, const std::vector<std::int64_t>& blocks) {
  double sum = 0;
  for (const std::int64_t b : blocks) sum += work[static_cast<std::size_t>(b)];
  return sum;
}

TEST(DivideEvenly, EveryBlockHasOneRankAndWorkIsWithinTheBound) {
  std::mt19937_64 random(3);
  for (const int ranks : {1, 2, 3, 4, 7, 8, 16})
    for (const std::size_t each : {1, 2, 5, 64})
      for (int trial = 0; trial < 20; ++trial) {
        std::vector<double> work(each * static_cast<std::size_t>(ranks));
        for (double& w : work) w = static_cast<double>(trial % 4 == 0 ? trial : random() % 1000 * (random() % 7 == 0));
        const std::vector<std::vector<std::int64_t>> blocks = divide_evenly(work, ranks);
        EXPECT_EQ(blocks, divide_evenly(work, ranks));
        std::vector<int> holders(work.size());
        int runs = 0;
        for (const std::vector<std::int64_t>& own : blocks) {
          EXPECT_EQ(own.size(), each);
          EXPECT_LE(work_of(work, own), max_work(work, ranks));
          for (std::size_t i = 0; i < own.size(); ++i) {
            ++holders[static_cast<std::size_t>(own[i])];
            runs += i == 0 || own[i] != own[i - 1] + 1;
            EXPECT_TRUE(i == 0 || own[i - 1] < own[i]);
          }
        }
        EXPECT_EQ(std::ranges::count(holders, 1), std::ssize(holders));
        EXPECT_LE(runs, 2 * ranks - 1);
      }
  EXPECT_THROW(divide_evenly({1, 2, 3}, 2), Error);
}

TEST(DivideEvenly, EvenWorkIsDividedIntoContiguousParts) {
  EXPECT_EQ(divide_evenly({4, 4, 4, 4, 4, 4}, 3), (std::vector<std::vector<std::int64_t>>{{0, 1}, {2, 3}, {4, 5}}));
}

// Returns documents with lengths like those of web text, log-normal with a median of 600 tokens and a mean of 1850,
// which fill a row.
std::vector<Span> text_documents(std::int64_t length, std::mt19937_64& random) {
  std::vector<std::int32_t> lengths;
  std::int64_t tokens = 0;
  while (tokens < length) {
    // A normally distributed random number, from uniformly distributed ones (Box and Muller 1958).
    const auto uniform = [&] { return (static_cast<double>(random() >> 11) + 1) / 9007199254740993.0; };
    const double normal = std::sqrt(-2 * std::log(uniform())) * std::cos(6.283185307179586 * uniform());
    const auto n = static_cast<std::int64_t>(std::ceil(600 * std::exp(1.5 * normal)));
    lengths.push_back(static_cast<std::int32_t>(std::min(n, length - tokens)));
    tokens += lengths.back();
  }
  return documents_of(length, 1, lengths);
}

std::vector<std::pair<std::string, Pattern>> balance_patterns() {
  const BlockRule near{.kind = BlockRuleKind::local_global, .local = 4, .first = 1, .every = 8};
  return {{"dense", dense()},
          {"window", window(1024, 4)},
          {"blocks", block_sparse(64, {near})},
          {"content", block_sparse(64, {{.kind = BlockRuleKind::content, .local = 1, .keep = 8}})},
          {"dilated", dilated({{512, 1}, {2048, 4}, {8192, 16}})}};
}

TEST(BalancedLayout, TextIsDividedWithinTheBound) {
  constexpr std::int64_t kLength = 8192;
  std::mt19937_64 random(5);
  for (const auto& [name, pattern] : balance_patterns())
    for (const int ranks : {2, 4, 8})
      for (int trial = 0; trial < 5; ++trial) {
        SCOPED_TRACE(str(name, ", ", ranks, " ranks, trial ", trial));
        const std::vector<Span> documents = text_documents(kLength, random);
        const ContextLayout layout({pattern}, kBalancedHeads, kLength, ranks);
        const ContextShards shards = layout.shards(0, 1, documents);
        EXPECT_EQ(shards.rows_by_rank, layout.shards(0, 1, documents).rows_by_rank);
        std::vector<int> holders(kLength);
        std::int64_t block = kLength;
        for (int r = 0; r < ranks; ++r) {
          EXPECT_EQ(shards.tokens(r), kLength / ranks);
          EXPECT_EQ(shards.tokens(r), layout.tokens_of_rank(r));
          for (const LocalRows& h : shards.rows_by_rank[static_cast<std::size_t>(r)]) {
            block = std::gcd(block, std::int64_t{h.global});
            for (std::int32_t i = 0; i < h.count; ++i) ++holders[static_cast<std::size_t>(h.global + i)];
          }
        }
        EXPECT_EQ(std::ranges::count(holders, 1), kLength);
        EXPECT_EQ(block % (pattern.blocks ? pattern.blocks->block() : 1), 0);
        // Coarser blocks have a larger bound than the layout's blocks, so the common divisor of the boundaries is safe.
        const std::vector<double> work =
            PairCounter({pattern}, kBalancedHeads).pairs_by_block(documents, kLength, block);
        const std::vector<double> pairs = pairs_by_rank(pattern, kBalancedHeads, 1, shards);
        EXPECT_NEAR(std::accumulate(pairs.begin(), pairs.end(), 0.0),
                    kBalancedHeads * std::accumulate(work.begin(), work.end(), 0.0), 1e-6 * pairs[0] * ranks);
        EXPECT_LE(*std::ranges::max_element(pairs), kBalancedHeads * max_work(work, ranks));
      }
}

// If layers have different patterns, the sum of their pairs is balanced. Every row is balanced by itself.
TEST(BalancedLayout, SumsOfLayersAreBalancedInEveryRow) {
  constexpr std::int64_t kLength = 4096;
  const std::vector<Pattern> layers = {dense(), window(256), window(256)};
  std::vector<Span> documents = text_documents(kLength, *std::make_unique<std::mt19937_64>(8));
  for (Span d : documents_of(kLength, 1, {1500, -100, 60})) d.first += kLength, documents.push_back(d);
  const ContextShards shards = ContextLayout(layers, kBalancedHeads, kLength, 4).shards(0, 3, documents);
  for (int row = 0; row < 3; ++row) {
    ContextShards one{0, {}, std::vector<std::vector<LocalRows>>(4)};
    for (const Span& d : documents)
      if (d.first / kLength == row) one.documents.push_back(d);
    for (std::size_t r = 0; r < 4; ++r)
      for (const LocalRows& h : shards.rows_by_rank[r])
        if (h.global / kLength == row) one.rows_by_rank[r].push_back(h);
    std::vector<double> sums(4);
    for (const Pattern& p : layers) {
      const std::vector<double> pairs = pairs_by_rank(p, kBalancedHeads, 1, one);
      for (std::size_t r = 0; r < 4; ++r) sums[r] += pairs[r];
    }
    for (int r = 0; r < 4; ++r) EXPECT_EQ(one.tokens(r), kLength / 4);
    EXPECT_LT(largest_over_mean(sums), 1.05) << "row " << row;
  }
}

TEST(BalancedLayout, RanksMustDivideTheRow) {
  try {
    ContextLayout({dense()}, kBalancedHeads, 1000, 3);
    FAIL();
  } catch (const Error& e) {
    EXPECT_NE(std::string(e.what()).find("Set model.context to a multiple of 3"), std::string::npos) << e.what();
  }
}

// docs/parallelism.md shows some of the recorded means over rows.
TEST(BalancedLayout, IsMuchMoreEvenThanPositions) {
  constexpr int kRows = 20;
  for (const std::int64_t length : {8192, 32768, 131072})
    for (const auto& [name, pattern] : balance_patterns()) {
      if (length > 8192 && pattern.blocks) continue;
      for (const int ranks : {2, 4, 8}) {
        const std::vector<std::pair<std::string, ContextLayout>> layouts = {
            {"zigzag", {ContextLayoutKind::zigzag, length, ranks, 128}},
            {"contiguous", {ContextLayoutKind::contiguous, length, ranks, 128}},
            {"balanced", {{pattern}, kBalancedHeads, length, ranks}}};
        std::map<std::string, double> mean;
        std::mt19937_64 random(7);
        for (int row = 0; row < kRows; ++row) {
          const std::vector<Span> documents = text_documents(length, random);
          for (const auto& [layout_name, layout] : layouts)
            mean[layout_name] +=
                largest_over_mean(pairs_by_rank(pattern, kBalancedHeads, 1, layout.shards(0, 1, documents))) / kRows;
        }
        const std::string key = str(name, "_", length, "_on_", ranks);
        for (const auto& [layout_name, value] : mean) RecordProperty(key + "_" + layout_name, std::to_string(value));
        EXPECT_LT(mean["balanced"] - 1, (std::min(mean["zigzag"], mean["contiguous"]) - 1) / 3) << key;
        EXPECT_LT(mean["balanced"], 1.04) << key;
      }
    }
}

}  // namespace
}  // namespace ring::test
