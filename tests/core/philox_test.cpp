#include "core/philox.h"

#include <gtest/gtest.h>

#include <cmath>
#include <set>
#include <vector>

namespace ring {
namespace {

std::vector<std::uint32_t> words(const Philox4& p) { return {p.v[0], p.v[1], p.v[2], p.v[3]}; }

// Known answers that the authors published with their Random123 library, for philox4x32 with 10 rounds.
TEST(Philox, MatchesPublishedVectors) {
  EXPECT_EQ(words(philox(0, 0, 0, 0, 0)), (std::vector<std::uint32_t>{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  const std::uint32_t ones = 0xffffffff;
  EXPECT_EQ(words(philox(~0ull, ones, ones, ones, ones)),
            (std::vector<std::uint32_t>{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(words(philox(0x299f31d0a4093822ull, 0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344)),
            (std::vector<std::uint32_t>{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

TEST(Philox, IsAConstantExpression) {
  constexpr Philox4 p = philox(0, 0, 0, 0, 0);
  static_assert(p.v[0] == 0x6627e8d5);
  EXPECT_EQ(p.v[3], 0x9b00dbd8);
}

TEST(Philox, AnElementIsAPartOfItsBlock) {
  const RandomSite site{7, 3, site_of("layers.0.dropout")};
  for (std::uint64_t element : {0ull, 1ull, 6ull, 1023ull, (1ull << 34) + 3})
    EXPECT_EQ(random_bits(site, element), random_block(site, element / 4).v[element % 4]);
}

TEST(Philox, EveryPartOfTheAddressMatters) {
  const RandomSite base{7, 3, 11};
  const std::set<std::uint32_t> bits = {
      random_bits(base, 5),       random_bits({8, 3, 11}, 5),          random_bits({7 + (1ull << 32), 3, 11}, 5),
      random_bits({7, 4, 11}, 5), random_bits({7, 3, 12}, 5),          random_bits(base, 6),
      random_bits(base, 9),       random_bits(base, 5 + (4ull << 32)),
  };
  EXPECT_EQ(bits.size(), 8u);
}

TEST(Philox, UniformStaysBelowOneAndFillsItsBins) {
  EXPECT_EQ(to_uniform(0), 0.0f);
  EXPECT_LT(to_uniform(0xffffffff), 1.0f);
  constexpr int kBins = 64, kDraws = 64 * 4096;
  std::vector<int> bins(kBins);
  for (int i = 0; i < kDraws; ++i) ++bins[static_cast<std::size_t>(to_uniform(random_bits({1, 2, 3}, i)) * kBins)];
  double chi2 = 0;
  for (int n : bins) chi2 += (n - 4096.0) * (n - 4096.0) / 4096.0;
  EXPECT_LT(chi2, 120.0);  // 63 degrees of freedom: exceeded by chance with probability 2e-5
  EXPECT_GT(chi2, 20.0);   // numbers that are too even are not random either
}

TEST(Philox, NormalHasTheRightMoments) {
  constexpr int kDraws = 200000;
  double sum = 0, square = 0, fourth = 0, neighbours = 0, previous = 0;
  for (int i = 0; i < kDraws; ++i) {
    const double x = random_normal({42, 0, 1}, i);
    ASSERT_TRUE(std::isfinite(x));
    sum += x;
    square += x * x;
    fourth += x * x * x * x;
    neighbours += x * previous;
    previous = x;
  }
  const double sigma = 1 / std::sqrt(kDraws);  // standard deviation of the mean
  EXPECT_NEAR(sum / kDraws, 0, 5 * sigma);
  EXPECT_NEAR(square / kDraws, 1, 5 * std::sqrt(2.0) * sigma);
  EXPECT_NEAR(fourth / kDraws, 3, 5 * std::sqrt(96.0) * sigma);
  EXPECT_NEAR(neighbours / kDraws, 0, 5 * sigma);
}

TEST(Philox, SiteIsFnv1aOfTheName) {  // known answers from the definition of 32-bit FNV-1a
  EXPECT_EQ(site_of(""), 0x811c9dc5u);
  EXPECT_EQ(site_of("a"), 0xe40c292cu);
  EXPECT_EQ(site_of("foobar"), 0xbf9cf968u);
}

}  // namespace
}  // namespace ring
