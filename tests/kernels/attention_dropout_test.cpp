// Dropout masks of attention weights: the share of dropped pairs, and independence of neighbors of all kinds (keys of a
// query, queries of a key, heads, layers, steps).

#include "kernels/attention/dropout.h"

#include <gtest/gtest.h>

#include <cmath>

#include "core/fake.h"
#include "kernels/attention/attention.h"
#include "tests/cases/attention_oracle.h"

namespace ring::test {
namespace {

constexpr float kRate = 0.2f;
constexpr std::int64_t kDropoutRows = 2000;
constexpr std::int32_t kKeys = 512;

struct Place {
  RandomSite site{.seed = 3, .step = 17, .site = site_of("dropout.weights.0")};
  std::int64_t first_row = 0, head = 0;
  std::int32_t first_key = 0;
};

// Returns the mask [kDropoutRows, kKeys], scaled to mean 0 and variance 1 if pairs are dropped at the rate.
std::vector<float> masks(const Place& at, float rate = kRate) {
  std::vector<float> all;
  const float one = std::sqrt(rate * (1 - rate));
  for (std::int64_t i = 0; i < kDropoutRows; ++i) {
    const std::uint32_t key = dropout_row_key(at.site, at.first_row + i, at.head);
    for (std::int32_t j = 0; j < kKeys; ++j) {
      const bool dropped = dropout_bits(key, dropout_column_key(at.first_key + j)) < dropout_threshold(rate);
      all.push_back(((dropped ? 1.0f : 0.0f) - rate) / one);
    }
  }
  return all;
}

// Sum of `n` products over the square root of their number: normal with variance 1 if the factors are independent.
struct Sum {
  double sum = 0;
  std::int64_t n = 0;
  void add(float x, float y = 1) { sum += double{x} * double{y}, ++n; }
  double normal() const { return sum / std::sqrt(static_cast<double>(n)); }
};
Sum connection(const std::vector<float>& a, const std::vector<float>& b) {
  Sum s;
  for (std::size_t i = 0; i < a.size(); ++i) s.add(a[i], b[i]);
  return s;
}

// Bound that one normal number in 15,000 exceeds: in one of 15 tests with a thousand numbers.
constexpr double kFar = 4;

TEST(AttentionDropoutMask, HasTheRate) {
  for (const float rate : {0.01f, 0.1f, 0.2f, 0.5f, 0.9f}) {
    Sum all;
    for (float x : masks({}, rate)) all.add(x);
    EXPECT_LT(std::abs(all.normal()), kFar) << rate;
  }
  EXPECT_EQ(dropout_threshold(0.5f), 1u << 31);
  EXPECT_EQ(dropout_threshold(0), 0u);
}

// The sums of rows and of columns vary like sums of independent pairs.
TEST(AttentionDropoutMask, RowsAndColumnsVaryLikeIndependentPairs) {
  for (const std::int32_t first_key : {0, 100000}) {
    const std::vector<float> m = masks({.first_key = first_key});
    std::vector<Sum> rows(kDropoutRows), columns(kKeys);
    for (std::size_t i = 0; i < m.size(); ++i) {
      rows[i / kKeys].add(m[i]);
      columns[i % kKeys].add(m[i]);
    }
    for (const auto& sums : {rows, columns}) {
      double squares = 0;
      for (const Sum& s : sums) {
        squares += s.normal() * s.normal();
        ASSERT_LT(std::abs(s.normal()), 5.5);
      }
      const auto n = static_cast<double>(sums.size());
      EXPECT_LT(std::abs(squares / n - 1), kFar * std::sqrt(2 / n));
    }
  }
}

// All distances along a row, and keys that differ in one bit.
TEST(AttentionDropoutMask, KeysOfAQueryAreIndependent) {
  const std::vector<float> m = masks({});
  double squares = 0;
  int distances = 0;
  for (std::int32_t d = 1; d < kKeys - 64; ++d, ++distances) {
    Sum apart;
    for (std::int64_t i = 0; i < kDropoutRows; ++i)
      for (std::int32_t j = 0; j + d < kKeys; ++j) {
        const auto at = static_cast<std::size_t>(i * kKeys + j);
        apart.add(m[at], m[at + static_cast<std::size_t>(d)]);
      }
    squares += apart.normal() * apart.normal();
    ASSERT_LT(std::abs(apart.normal()), 5) << d;
  }
  EXPECT_LT(std::abs(squares / distances - 1), kFar * std::sqrt(2.0 / distances));
  for (std::int32_t bit = 9; bit < 25; ++bit)
    EXPECT_LT(std::abs(connection(m, masks({.first_key = 1 << bit})).normal()), kFar) << bit;
}

TEST(AttentionDropoutMask, QueriesOfAKeyAreIndependent) {
  const std::vector<float> m = masks({});
  double squares = 0;
  int distances = 0;
  for (std::size_t d = 1; d < 300; ++d, ++distances) {
    Sum apart;
    for (std::size_t i = 0; i + d * kKeys < m.size(); ++i) apart.add(m[i], m[i + d * kKeys]);
    squares += apart.normal() * apart.normal();
    ASSERT_LT(std::abs(apart.normal()), 5) << d;
  }
  EXPECT_LT(std::abs(squares / distances - 1), kFar * std::sqrt(2.0 / distances));
}

// Four pairs of two queries and two keys: their bits are products of the same four keys.
TEST(AttentionDropoutMask, RectanglesAreIndependent) {
  const std::vector<float> m = masks({});
  double squares = 0;
  int shapes = 0;
  for (std::size_t rows = 1; rows <= 8; ++rows)
    for (std::size_t columns = 1; columns <= 16; ++columns, ++shapes) {
      Sum products;
      for (std::size_t at = 0; at + rows * kKeys < m.size(); ++at)
        if (at % kKeys + columns < kKeys)
          products.add(m[at] * m[at + columns], m[at + rows * kKeys] * m[at + rows * kKeys + columns]);
      squares += products.normal() * products.normal();
      ASSERT_LT(std::abs(products.normal()), 5) << rows << " " << columns;
    }
  EXPECT_LT(std::abs(squares / shapes - 1), kFar * std::sqrt(2.0 / shapes));
}

// Equally spaced keys: if column keys were multiples of the position, the bits of the third would follow from the
// others.
TEST(AttentionDropoutMask, ThreeKeysOfAQueryAreIndependent) {
  const std::vector<float> m = masks({});
  double squares = 0;
  int distances = 0;
  for (std::size_t d = 1; d <= 128; ++d, ++distances) {
    Sum products;
    for (std::size_t at = 0; at < m.size(); ++at)
      if (at % kKeys + 2 * d < kKeys) products.add(m[at] * m[at + d], m[at + 2 * d]);
    squares += products.normal() * products.normal();
    ASSERT_LT(std::abs(products.normal()), 5) << d;
  }
  EXPECT_LT(std::abs(squares / distances - 1), kFar * std::sqrt(2.0 / distances));
}

TEST(AttentionDropoutMask, ChangesWithHeadLayerStepAndSeed) {
  const std::vector<float> m = masks({});
  Place other[6];
  other[0].head = 1, other[1].site.step = 18, other[2].site.seed = 4;
  other[3].site.site = site_of("dropout.weights.1"), other[4].first_row = 1 << 20, other[5].head = 4;
  for (const Place& p : other) EXPECT_LT(std::abs(connection(m, masks(p)).normal()), kFar);
}

// The mask equals that of the oracle in all attention cases, which follows the definition.
TEST(AttentionDropoutMask, EqualsItsDefinition) {
  const OracleDropout d{.rate = 0.37f, .first_row = 5, .first_head = 2};
  for (std::int64_t row : {0, 1, 77})
    for (std::int32_t key : {0, 1, 1000, 1 << 29}) {
      const std::uint32_t bits = dropout_bits(dropout_row_key(d.site, 5 + row, 2 + 3), dropout_column_key(key));
      EXPECT_EQ(bits < dropout_threshold(0.37f), d.factor(row, 3, key) == 0) << row << " " << key;
    }
}

// Memory plans of a run: a GPU draws a key for each row and head.
TEST(AttentionDropoutMemory, OfAForwardOnAGpuIsCounted) {
  const FakeMode fake;
  const ExecContext gpu{.stream = Stream::create({Backend::cuda, 0})}, cpu{.stream = Stream::create({Backend::cpu, 0})};
  Attention a{.q = gpu.empty({100, 4, 64}), .lse = gpu.empty({4, 100})};
  EXPECT_EQ(scratch_bytes(a, gpu), 0u);
  a.dropout.rate = 0.1f;
  EXPECT_EQ(scratch_bytes(a, gpu), std::size_t{4 * 4 * 100});
  EXPECT_EQ(scratch_bytes(a, cpu), 0u);
}

}  // namespace
}  // namespace ring::test
