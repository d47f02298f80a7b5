#include "parallel/block_quantization.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "core/philox.h"

namespace ring::test {
namespace {

struct Message {
  std::vector<std::byte> bytes;
  std::vector<float> left;
};

Message quantized(std::vector<float> values, int bits) {
  const auto n = std::ssize(values);
  Message m{std::vector<std::byte>(static_cast<std::size_t>(quantized_bytes(n, bits))), std::move(values)};
  quantize_blocks(m.left.data(), n, bits, 0, quantized_blocks(n), m.bytes.data());
  return m;
}

std::vector<float> decoded(const Message& m, int bits) {
  std::vector<float> sum(m.left.size(), 0.0f);
  for (std::int64_t b = 0; b < quantized_blocks(std::ssize(sum)); ++b)
    add_quantized_block(m.bytes.data(), std::ssize(sum), bits, b, sum.data() + b * kQuantizedBlock);
  return sum;
}

double uniform(std::uint64_t i) {  // in (-1, 1)
  return (static_cast<double>(random_bits({11, 0, 0}, i)) + 0.5) / 2147483648.0 - 1;
}

// Numbers whose magnitudes differ within a block, and much more between blocks.
std::vector<float> numbers(std::int64_t n, std::uint64_t seed) {
  std::vector<float> v;
  for (std::int64_t i = 0; i < n; ++i) {
    const std::uint64_t at = seed * 1'000'003 + static_cast<std::uint64_t>(i);
    const int block = static_cast<int>(i / kQuantizedBlock), exponent = (block * 37) % 200 - 100;
    v.push_back(static_cast<float>(std::ldexp(std::pow(uniform(2 * at), 9), exponent)));
  }
  return v;
}

class BlockQuantization : public testing::TestWithParam<int> {};

TEST_P(BlockQuantization, WhatIsSentAndWhatIsLeftAddUpExactly) {
  const int bits = GetParam();
  for (const std::int64_t n : {1, 3, 127, 128, 129, 5000}) {
    std::vector<float> values = numbers(n, static_cast<std::uint64_t>(n));
    values[static_cast<std::size_t>(n) / 2] = 0;
    if (n > 200) values[7] = std::numeric_limits<float>::denorm_min(), values[150] = 3e38f, values[151] = -1e-45f;
    const Message m = quantized(values, bits);
    const std::vector<float> sent = decoded(m, bits);
    for (std::size_t i = 0; i < values.size(); ++i)
      ASSERT_EQ(static_cast<double>(sent[i]) + static_cast<double>(m.left[i]), static_cast<double>(values[i]))
          << i << " of " << n;
  }
}

// With 8 and 4 bits no number is clipped, so at most half a scale is left, and a scale is less than twice the largest
// number over the largest code.
TEST_P(BlockQuantization, AtMostHalfAScaleIsLeft) {
  const int bits = GetParam();
  if (bits == 2) GTEST_SKIP() << "clips";
  const std::vector<float> values = numbers(4096, 5);
  const Message m = quantized(values, bits);
  for (std::size_t begin = 0; begin < values.size(); begin += kQuantizedBlock) {
    double largest = 0, left = 0;
    for (std::size_t i = begin; i < begin + kQuantizedBlock; ++i)
      largest = std::max(largest, std::abs(static_cast<double>(values[i]))),
      left = std::max(left, std::abs(static_cast<double>(m.left[i])));
    EXPECT_LE(left, largest / ((1 << (bits - 1)) - 1));
  }
}

TEST_P(BlockQuantization, AMessageHasAByteForEachBlockAndTheCodes) {
  const int bits = GetParam();
  EXPECT_EQ(quantized_bytes(1280, bits), 10 + 1280 * bits / 8);
  EXPECT_EQ(quantized_bytes(129, bits), 2 + (129 * bits + 7) / 8);
}

TEST_P(BlockQuantization, PartsGiveTheSameMessage) {
  const int bits = GetParam();
  const std::vector<float> values = numbers(1000, 3);
  const Message whole = quantized(values, bits);
  Message parts{std::vector<std::byte>(whole.bytes.size()), values};
  for (const auto& [first, end] : {std::pair<std::int64_t, std::int64_t>{5, 8}, {0, 2}, {2, 5}})
    quantize_blocks(parts.left.data(), 1000, bits, first, end, parts.bytes.data());
  EXPECT_EQ(parts.bytes, whole.bytes);
  EXPECT_EQ(parts.left, whole.left);
}

TEST_P(BlockQuantization, OnlyTheBlockOfANumberThatIsNotFiniteDecodesToNan) {
  const int bits = GetParam();
  for (const float bad : {std::numeric_limits<float>::quiet_NaN(), -std::numeric_limits<float>::infinity()}) {
    std::vector<float> values = numbers(400, 2);
    values[200] = bad;
    const std::vector<float> sent = decoded(quantized(values, bits), bits);
    for (std::size_t i = 0; i < sent.size(); ++i) EXPECT_EQ(std::isnan(sent[i]), i / 128 == 1) << i;
  }
}

// Error feedback: what a message leaves out is added to the next one, so that the sum of all messages stays close to
// the sum of all values, however few bits a message has. Values near normal: sums of twelve uniform numbers.
TEST_P(BlockQuantization, ErrorFeedbackKeepsTheSumOfMessagesClose) {
  const int bits = GetParam();
  constexpr std::size_t kNumbers = 256;
  std::vector<float> residual(kNumbers, 0.0f);
  std::vector<double> sent(kNumbers, 0), wanted(kNumbers, 0);
  constexpr int kMessages = 200;
  for (int round = 0; round < kMessages; ++round) {
    for (std::size_t i = 0; i < kNumbers; ++i) {
      double normal = 0.2;  // the mean, which must arrive
      for (std::uint64_t k = 0; k < 12; ++k)
        normal += uniform((static_cast<std::uint64_t>(round) * kNumbers + i) * 12 + k) / 2;
      wanted[i] += static_cast<float>(normal);
      residual[i] += static_cast<float>(normal);
    }
    const Message m = quantized(residual, bits);
    const std::vector<float> now = decoded(m, bits);
    for (std::size_t i = 0; i < kNumbers; ++i) sent[i] += now[i];
    residual = m.left;
  }
  // Each wanted sum is about 40 with a standard deviation of 14; what is left must stay at the size of a few values.
  for (std::size_t i = 0; i < kNumbers; ++i) EXPECT_NEAR(sent[i], wanted[i], 8) << i;
}

INSTANTIATE_TEST_SUITE_P(Bits, BlockQuantization, testing::Values(8, 4, 2));

}  // namespace
}  // namespace ring::test
