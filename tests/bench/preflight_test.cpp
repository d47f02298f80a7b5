#include "bench/preflight.h"

#include <gtest/gtest.h>

#include <limits>
#include <set>

#include "core/exit_code.h"
#include "tests/trainer/runs.h"

namespace ring {
namespace {

// Facts of a GPU run with four ranks on two hosts, in which every pair of hosts exchanged messages.
std::vector<PreflightFacts> four_gpus() {
  std::vector<PreflightFacts> all;
  for (int rank = 0; rank < 4; ++rank)
    all.push_back({.host = rank < 2 ? "a" : "b",
                   .device = "H200",
                   .on_gpu = true,
                   .flops_per_second = 7e14 + rank * 1e12,
                   .bytes_per_second = 4e12,
                   .messages = {{(rank + 2) % 4, 4e10, false}}});
  return all;
}

TEST(Preflight, EveryPairOfUnitsMeetsOnce) {
  for (int units = 2; units < 12; ++units) {
    std::set<std::pair<int, int>> met;
    for (int round = 0; round < units - 1 + units % 2; ++round)
      for (int unit = 0; unit < units; ++unit) {
        const int other = partner_in_round(unit, units, round);
        if (other < 0) continue;
        EXPECT_EQ(partner_in_round(other, units, round), unit) << units;
        EXPECT_NE(other, unit);
        EXPECT_TRUE(met.insert({unit, other}).second) << units;
      }
    EXPECT_EQ(met.size(), static_cast<std::size_t>(units * (units - 1)));
  }
}

TEST(Preflight, HealthyRanksAreNotNamed) { EXPECT_TRUE(preflight_problems(four_gpus()).empty()); }

TEST(Preflight, SlowRanksAreNamedWithTheMedianOfTheOthers) {
  std::vector<PreflightFacts> all = four_gpus();
  all[2].flops_per_second = 5e14;
  all[1].bytes_per_second = 1e12;
  EXPECT_EQ(
      preflight_problems(all),
      (std::vector<std::string>{"rank 1 on a (H200) copied 1 TB/s, the median of the other ranks 4 TB/s",
                                "rank 2 on b (H200) computed 500 TFLOP/s, the median of the other ranks 701 TFLOP/s"}));
  all = four_gpus();
  all[0].messages[0].bytes_per_second = 1e10;  // one side measured it
  EXPECT_EQ(
      preflight_problems(all),
      (std::vector<std::string>{"ranks 0 on a and 2 on b exchanged 10 GB/s, the median of the other pairs 40 GB/s"}));
}

TEST(Preflight, NanRatesAreProblems) {
  std::vector<PreflightFacts> all = four_gpus();
  all[3].flops_per_second = std::numeric_limits<double>::quiet_NaN();
  EXPECT_EQ(preflight_problems(all).size(), 1u);
}

TEST(Preflight, DifferentDevicesAreNotCompared) {
  std::vector<PreflightFacts> all = four_gpus();
  all[3].device = "T400";
  all[3].flops_per_second = 1e12;
  EXPECT_TRUE(preflight_problems(all).empty());
}

TEST(Preflight, WrongResultsAreNamed) {
  std::vector<PreflightFacts> all = four_gpus();
  all[0].wrong_copies = 1;
  all[1].wrong_products = 3;
  all[2].messages[0].wrong = true;
  EXPECT_EQ(preflight_problems(all),
            (std::vector<std::string>{"rank 0 on a (H200) copied 1 element wrongly",
                                      "rank 1 on a (H200) computed 3 wrong elements of a product",
                                      "rank 2 on b (H200) received different bytes than rank 0 sent"}));
}

// The product is computed with integers.
TEST(Preflight, OneWrongElementOfAProductIsFound) {
  constexpr std::int64_t kSide = 128, kPeriod = 64;
  const auto left = [](std::int64_t m) { return (7 * m * m + 3 * m) % 17 - 8; };
  const auto right = [](std::int64_t m) { return (5 * m * m + 11 * m) % 13 - 6; };
  std::vector<float> product;
  for (std::int64_t i = 0; i < kSide; ++i)
    for (std::int64_t j = 0; j < kSide; ++j) {
      std::int64_t sum = 0;
      for (std::int64_t k = 0; k < kSide; ++k) sum += left((i + k) % kPeriod) * right((j + k) % kPeriod);
      product.push_back(static_cast<float>(sum));
    }
  const Stream stream = Stream::cpu(1);
  const auto wrong = [&] { return count_wrong_elements(from_host(product, stream).view({kSide, kSide}), stream); };
  EXPECT_EQ(wrong(), 0);
  product[77] += 1;
  EXPECT_EQ(wrong(), 1);
  product[99] = std::numeric_limits<float>::quiet_NaN();
  EXPECT_EQ(wrong(), 2);
}

using DistPreflight = test::Runs;

TEST_F(DistPreflight, PrintsATableBeforeTheFirstStep) {
  std::vector<std::string> words = {"launch", "-n", "2", "--"};
  const std::vector<std::string> train = this->train("run", {"--preflight", "train.steps=2", "run.threads=1"});
  words.insert(words.end(), train.begin() + 1, train.end());
  const test::Finished f = ring(words);
  EXPECT_EQ(f.code, 0) << f.output;
  EXPECT_NE(f.output.find("preflight:\n  rank  host"), std::string::npos) << f.output;
  EXPECT_NE(f.output.find("with rank 1"), std::string::npos) << f.output;
  EXPECT_LT(f.output.find("preflight:"), f.output.find("2 processes on cpu")) << f.output;
}

// Any one of the messages may be damaged.
TEST_F(DistPreflight, OneDamagedMessageOfSeveralIsNamed) {
  for (const int nth : {1, 3, 6}) {
    const std::string fault = str("1:corrupt@rank=1,call=exchange,side=received,bytes=1000000,nth=", nth);
    std::vector<std::string> words = {"launch", "--inject", fault, "-n", "2", "--"};
    const std::vector<std::string> train = this->train(str("run", nth), {"--preflight", "run.threads=1"});
    words.insert(words.end(), train.begin() + 1, train.end());
    const test::Finished f = ring(words);
    EXPECT_EQ(f.code, kExitError) << f.output;
    EXPECT_NE(f.output.find(" received different bytes"), std::string::npos) << f.output;
  }
}

}  // namespace
}  // namespace ring
