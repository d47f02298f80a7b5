// Rounding to q8_0 against its definition in float64.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "interchange/gguf/type.h"
#include "tests/checkpoint/fixture.h"

namespace ring::test {
namespace {

double half(const std::byte* bytes) {
  std::uint16_t bits = 0;
  std::memcpy(&bits, bytes, 2);
  const int exponent = bits >> 10 & 31, fraction = bits & 1023;
  EXPECT_LT(bits, 0x7C00);  // a scale is finite and not negative
  return exponent ? std::ldexp(1024 + fraction, exponent - 25) : std::ldexp(fraction, -24);
}

std::vector<std::byte> q8(const std::vector<float>& values) {
  std::vector<std::byte> bytes(gguf_bytes(GgufType::q8_0, values.size()));
  gguf_round(GgufType::q8_0, values.data(), values.size(), bytes.data());
  return bytes;
}

void expect_block(const float* values, const std::byte* block) {
  double largest = 0;
  for (int i = 0; i < 32; ++i) largest = std::max(largest, std::abs(static_cast<double>(values[i])));
  const double scale = largest / 127, kept = half(block);
  EXPECT_LE(std::abs(kept - scale), std::max(std::ldexp(scale, -11), std::ldexp(1, -25)));
  for (int i = 0; i < 32; ++i) {
    const int q = static_cast<std::int8_t>(block[2 + i]);
    EXPECT_LE(std::abs(q), 127);
    const double exact = kept > 0 ? values[i] / scale : 0;
    EXPECT_LE(std::abs(exact - q), kept > 0 ? 0.5 + 1e-4 : 0) << values[i] << " " << q;
  }
}

TEST(Q8, BlocksAreTheNearestBytes) {
  std::mt19937 random(7);
  for (const double size : {1e-30, 1e-7, 1e-4, 0.02, 1.0, 1e3, 8e6}) {
    std::uniform_real_distribution<float> value(static_cast<float>(-size), static_cast<float>(size));
    std::vector<float> values(96);
    for (float& v : values) v = value(random);
    const std::vector<std::byte> bytes = q8(values);
    ASSERT_EQ(bytes.size(), 3u * 34);
    for (std::size_t b = 0; b < 3; ++b) expect_block(values.data() + 32 * b, bytes.data() + 34 * b);
  }
  EXPECT_EQ(q8(std::vector<float>(32)), std::vector<std::byte>(34));
}

TEST(Q8, HalvesRoundAwayFromZero) {
  std::vector<float> values(32);
  values[0] = 127, values[1] = 2.5f, values[2] = -2.5f, values[3] = 3.5f, values[4] = -127;
  const std::vector<std::byte> bytes = q8(values);
  EXPECT_EQ(half(bytes.data()), 1);
  const int expected[] = {127, 3, -3, 4, -127, 0};
  for (int i = 0; i < 6; ++i) EXPECT_EQ(static_cast<std::int8_t>(bytes[static_cast<std::size_t>(2 + i)]), expected[i]);
}

TEST(Q8, RefusesValuesOutOfRange) {
  for (const float bad : {1e8f, std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN()}) {
    std::vector<float> values(32);
    values[9] = bad;
    EXPECT_NE(error_of([&] { q8(values); }), "") << bad;
  }
}

}  // namespace
}  // namespace ring::test
