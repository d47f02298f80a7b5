// Codes of gradients on every available backend: what was sent plus what is left is the gradient.
#include "kernels/gradient_codes.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "core/philox.h"
#include "tests/e4m3.h"
#include "tests/kernels/poison_allocator.h"
#include "tests/kernels/step_state_tensor.h"
#include "tests/op_case.h"

namespace ring::test {
namespace {

using Floats = std::vector<float>;
constexpr float kHuge = 3.4028234663852886e38f, kSmallest = 1.4012984643248171e-45f;

struct NamedCoding {
  const char* name;
  GradientCoding coding;
};
const std::vector<NamedCoding> kCodings = {{"f32", {GradientCode::f32, 0}},
                                           {"bf16", {GradientCode::bf16, 0}},
                                           {"int8", {GradientCode::int8, 0}},
                                           {"fp8", {GradientCode::fp8, 0}},
                                           {"int4", {GradientCode::int4, 0}},
                                           {"int2", {GradientCode::int2, 0}},
                                           {"topk 1", {GradientCode::topk, 1}},
                                           {"topk 11", {GradientCode::topk, 11}},
                                           {"topk all", {GradientCode::topk, kTopBlock}}};

// Returns the codes that the context's device supports.
std::vector<NamedCoding> codings_of(const ExecContext& ctx) {
  std::vector<NamedCoding> all = kCodings;
  if (ctx.stream.device().backend == Backend::cuda)
    std::erase_if(all, [](const NamedCoding& c) {
      return c.coding.code == GradientCode::int4 || c.coding.code == GradientCode::int2;
    });
  return all;
}

constexpr std::int64_t kSizes[] = {1, 15, 127, 128, 129, 1000, 1024, 1025, 5003};

// Random bits as finite floats: every exponent, with subnormal numbers, both signs.
Floats any_floats(std::int64_t n, std::uint32_t seed) {
  Floats out(static_cast<std::size_t>(n));
  for (std::size_t i = 0; i < out.size(); ++i) {
    const std::uint32_t bits = random_block({seed, 1, 2}, i).v[0];
    const auto x = std::bit_cast<float>(bits);
    out[i] = std::isfinite(x) ? x : 0.0f;
  }
  return out;
}

// Numbers of similar magnitude, as in a gradient.
Floats similar_floats(std::int64_t n, std::uint32_t seed, double scale) {
  Floats out(static_cast<std::size_t>(n));
  for (std::size_t i = 0; i < out.size(); ++i) out[i] = static_cast<float>(scale * random_normal({seed, 3, 4}, i));
  return out;
}

std::vector<Floats> gradients_of(std::int64_t n) {
  const auto size = static_cast<std::size_t>(n);
  std::vector<Floats> all = {any_floats(n, 1),    similar_floats(n, 2, 1e-3), Floats(size, 0.0f),
                             Floats(size, kHuge), Floats(size, -kSmallest),   similar_floats(n, 3, 1e-40),
                             Floats(size, 2.5f)};
  all.push_back(similar_floats(n, 4, 1e-20));  // one huge value in a block
  all.back()[size / 2] = -kHuge;
  all.push_back(similar_floats(n, 5, 3e38));
  for (float& x : all.back()) x = std::isfinite(x) ? x : kHuge;
  all.push_back(any_floats(n, 6));  // subnormal numbers
  for (float& x : all.back()) x = std::bit_cast<float>(std::bit_cast<std::uint32_t>(x) & 0x807fffffu);
  return all;
}

struct Coded {
  Floats sent, left;
  std::vector<std::uint8_t> message;
};

Tensor device_floats(const Floats& x, const ExecContext& ctx) { return from_host(x, ctx.stream); }

Coded encode_and_decode(const Floats& x, const GradientCoding& coding, const ExecContext& ctx,
                        const Floats& residual = {}) {
  const auto n = static_cast<std::int64_t>(x.size());
  const Tensor before = residual.empty() ? Tensor{} : device_floats(residual, ctx);
  const Tensor left = before.defined() ? before : ctx.empty({n}), sum = ctx.empty({n});
  const Tensor message = ctx.empty({message_bytes(coding, n)}, DType::u8);
  encode_gradient_kernel({device_floats(x, ctx), before, left, message, coding}, ctx);
  decode_gradient_kernel({message, sum, coding}, ctx);
  return {to_host<float>(sum, ctx.stream), to_host<float>(left, ctx.stream),
          to_host<std::uint8_t>(message, ctx.stream)};
}

// If the exact sum of both parts is x, which is a float, then f64 and f32 additions both give x.
void expect_complete(const Floats& x, const Coded& c, const std::string& where) {
  for (std::size_t i = 0; i < x.size(); ++i) {
    ASSERT_EQ(double{c.sent[i]} + double{c.left[i]}, double{x[i]}) << where << " element " << i;
    ASSERT_EQ(c.sent[i] + c.left[i], x[i]) << where << " element " << i;
  }
}

void expect_sent_and_left(const ExecContext& ctx) {
  for (const auto& [name, coding] : codings_of(ctx))
    for (const std::int64_t n : kSizes) {
      int number = 0;
      for (const Floats& x : gradients_of(n))
        expect_complete(x, encode_and_decode(x, coding, ctx), str(name, ", ", n, " elements, input ", number++));
    }
}

// Non-finite numbers reach the receiver, and leave finite residuals.
void expect_poison(const ExecContext& ctx) {
  for (const auto& [name, coding] : codings_of(ctx))
    for (const float bad : {std::nanf(""), HUGE_VALF, -HUGE_VALF})
      for (const std::size_t at : {std::size_t{0}, std::size_t{700}, std::size_t{1499}}) {
        Floats x = similar_floats(1500, 7, 1);
        x[at] = bad;
        const Coded c = encode_and_decode(x, coding, ctx);
        EXPECT_FALSE(std::isfinite(c.sent[at])) << name << " " << bad << " at " << at;
        for (const float left : c.left) EXPECT_TRUE(std::isfinite(left)) << name;
      }
}

TEST(GradientCodes, SentPlusLeftIsTheGradient) {
  for (const int threads : {1, 3}) expect_sent_and_left(poisoned_context(threads));
}

TEST(GradientCodes, NonFiniteNumbersAreSentAndLeaveNothing) { expect_poison(poisoned_context(2)); }

// Calls fn(begin, end) for each block of elements that share a scale.
template <class Fn>
void for_each_block(std::size_t n, const Fn& fn) {
  constexpr auto kBlock = static_cast<std::size_t>(kCodeBlock);
  for (std::size_t begin = 0; begin < n; begin += kBlock) fn(begin, std::min(n, begin + kBlock));
}

double largest_of(const Floats& x, std::size_t begin, std::size_t end) {
  double max = 0;
  for (std::size_t i = begin; i < end; ++i) max = std::max(max, std::abs(double{x[i]}));
  return max;
}

// Against the definitions in f64.
TEST(GradientCodes, SentValuesAreTheNearest) {
  const ExecContext ctx = poisoned_context(2);
  for (const Floats& x :
       {similar_floats(3000, 8, 1e-4), similar_floats(3000, 9, 1e30), similar_floats(3000, 9, 1e-39)}) {
    const Coded fp8 = encode_and_decode(x, {GradientCode::fp8, 0}, ctx);
    const Coded half = encode_and_decode(x, {GradientCode::bf16, 0}, ctx);
    for (const auto& [largest_code, code] : {std::pair{127.0, GradientCode::int8}, {7.0, GradientCode::int4}}) {
      const Coded integers = encode_and_decode(x, {code, 0}, ctx);
      for_each_block(x.size(), [&](std::size_t begin, std::size_t end) {
        const double max = largest_of(x, begin, end);
        double step = std::ldexp(1, -126);
        while (max / step > largest_code) step *= 2;
        for (std::size_t i = begin; i < end; ++i)
          EXPECT_EQ(double{integers.sent[i]}, std::nearbyint(x[i] / step) * step) << largest_code << " at " << i;
      });
    }
    for_each_block(x.size(), [&](std::size_t begin, std::size_t end) {
      const double scale = scale_of(largest_of(x, begin, end));
      for (std::size_t i = begin; i < end; ++i) {
        EXPECT_EQ(double{fp8.sent[i]}, e4m3_value(nearest_code(x[i] / scale)) * scale) << i;
        EXPECT_LE(std::abs(half.left[i]), std::max(std::ldexp(std::abs(x[i]), -8), std::ldexp(1.0f, -134))) << i;
      }
    });
  }
}

TEST(GradientCodes, TwoBitsSendTheSignOfElementsAboveHalfAStep) {
  const ExecContext ctx = poisoned_context(2);
  for (const double size : {1e-4, 1.0, 1e30}) {
    const Floats x = similar_floats(3000, 17, size);
    const Coded c = encode_and_decode(x, {GradientCode::int2, 0}, ctx);
    for_each_block(x.size(), [&](std::size_t begin, std::size_t end) {
      double mean = 0;
      for (std::size_t i = begin; i < end; ++i) mean += std::abs(double{x[i]}) / static_cast<double>(end - begin);
      const double step = std::exp2(std::round(std::log2(1.53 * mean)));
      for (std::size_t i = begin; i < end; ++i)
        EXPECT_EQ(double{c.sent[i]}, std::abs(x[i]) > step / 2 ? std::copysign(step, x[i]) : 0) << i;
    });
  }
}

// With error feedback, the sum of all messages stays close to the sum of all inputs, even with 2 bits.
TEST(GradientCodes, ErrorFeedbackKeepsTheSumOfMessagesClose) {
  const ExecContext ctx = poisoned_context(2);
  for (const GradientCode code : {GradientCode::int8, GradientCode::int4, GradientCode::int2}) {
    std::vector<double> sent(256, 0), wanted(256, 0);
    Floats residual(256, 0.0f);
    for (std::uint32_t round = 0; round < 200; ++round) {
      Floats x = similar_floats(256, 1000 + round, 1);
      for (float& value : x) value += 0.2f;  // a mean that the messages must transmit
      const Coded c = encode_and_decode(x, {code, 0}, ctx, residual);
      for (std::size_t i = 0; i < x.size(); ++i) wanted[i] += x[i], sent[i] += c.sent[i];
      residual = c.left;
    }
    // wanted[i] is about 40 +- 14. The error must stay bounded by a few single inputs, not grow with the messages.
    for (std::size_t i = 0; i < sent.size(); ++i) EXPECT_NEAR(sent[i], wanted[i], 8) << static_cast<int>(code);
  }
}

TEST(GradientCodes, TopkSendsTheLargest) {
  const ExecContext ctx = poisoned_context(2);
  Floats x = similar_floats(2500, 10, 1);
  for (std::size_t i = 0; i < 64; ++i) x[i] = 4;  // ties: the first ones are sent
  for (const std::int64_t top : {1, 20, 100}) {
    const Coded c = encode_and_decode(x, {GradientCode::topk, top}, ctx);
    for (std::size_t begin = 0; begin < x.size(); begin += kTopBlock) {
      const std::size_t end = std::min(x.size(), begin + static_cast<std::size_t>(kTopBlock));
      float smallest_sent = HUGE_VALF, largest_left = 0;
      std::int64_t sent = 0;
      for (std::size_t i = begin; i < end; ++i) {
        if (c.sent[i] == 0) {
          largest_left = std::max(largest_left, std::abs(x[i]));
          EXPECT_EQ(c.left[i], x[i]);
          continue;
        }
        ++sent;
        smallest_sent = std::min(smallest_sent, std::abs(x[i]));
      }
      EXPECT_EQ(sent, top);
      EXPECT_GE(smallest_sent, largest_left);
    }
    if (top == 20) {
      EXPECT_TRUE(c.sent[0] == 4 && c.left[63] == 4);
    }
  }
}

TEST(GradientCodes, ResidualsAreAddedFirst) {
  const ExecContext ctx = poisoned_context(1);
  const Floats x = similar_floats(1111, 11, 1), residual = similar_floats(1111, 12, 0.1);
  Floats both(x.size());
  for (std::size_t i = 0; i < x.size(); ++i) both[i] = x[i] + residual[i];
  for (const auto& [name, coding] : kCodings) {
    const Coded c = encode_and_decode(x, coding, ctx, residual), direct = encode_and_decode(both, coding, ctx);
    EXPECT_EQ(c.message, direct.message) << name;
    EXPECT_EQ(c.left, direct.left) << name;
  }
}

TEST(GradientCodes, DecodingAdds) {
  const ExecContext ctx = poisoned_context(2);
  const Floats x = similar_floats(1300, 13, 1), start = similar_floats(1300, 14, 1);
  for (const auto& [name, coding] : kCodings) {
    const Coded c = encode_and_decode(x, coding, ctx);
    const Tensor sum = device_floats(start, ctx);
    decode_gradient_kernel({from_host(c.message, ctx.stream), sum, coding, true}, ctx);
    const Floats got = to_host<float>(sum, ctx.stream);
    for (std::size_t i = 0; i < x.size(); ++i) EXPECT_EQ(got[i], start[i] + c.sent[i]) << name;
  }
}

TEST(GradientCodes, ARejectedStepRestoresResiduals) {
  const ExecContext ctx = poisoned_context(2);
  const Floats old = similar_floats(500, 15, 1), later = similar_floats(500, 16, 1);
  for (const bool accepted : {true, false}) {
    const Tensor kept = device_floats(old, ctx), pending = device_floats(later, ctx);
    settle_residuals_kernel({kept, pending, state_tensor({.accepted = accepted ? 1u : 0u}, ctx)}, ctx);
    EXPECT_EQ(to_host<float>(kept, ctx.stream), accepted ? later : old);
    EXPECT_EQ(to_host<float>(pending, ctx.stream), accepted ? later : old);
  }
}

TEST(GradientCodes, OtherSizesAreRefused) {
  const ExecContext ctx = poisoned_context(1);
  const Tensor x = ctx.zeros({100}), message = ctx.zeros({message_bytes({GradientCode::int8, 0}, 100)}, DType::u8);
  EXPECT_THROW(encode_gradient_kernel({x, {}, ctx.zeros({99}), message, {GradientCode::int8, 0}}, ctx), Error);
  EXPECT_THROW(encode_gradient_kernel({x, {}, {}, message, {GradientCode::bf16, 0}}, ctx), Error);
  EXPECT_THROW(decode_gradient_kernel({message, ctx.zeros({200}), {GradientCode::int8, 0}}, ctx), Error);
  EXPECT_THROW(encode_gradient_kernel({x, {}, {}, message, {GradientCode::topk, 0}}, ctx), Error);
}

class GpuGradientCodes : public testing::Test {
 protected:
  void SetUp() override {
    if (!backend_available(Backend::cuda)) GTEST_SKIP() << "no GPU";
  }
};

TEST_F(GpuGradientCodes, SentPlusLeftIsTheGradient) {
  expect_sent_and_left(poisoned_device_context({Backend::cuda, 0}));
}

TEST_F(GpuGradientCodes, NonFiniteNumbersAreSentAndLeaveNothing) {
  expect_poison(poisoned_device_context({Backend::cuda, 0}));
}

TEST_F(GpuGradientCodes, ValuesAreThoseOfCpus) {
  const ExecContext cpu = poisoned_context(2), gpu = poisoned_device_context({Backend::cuda, 0});
  for (const auto& [name, coding] : codings_of(gpu))
    for (const std::int64_t n : kSizes)
      for (const Floats& x : gradients_of(n)) {
        const Coded a = encode_and_decode(x, coding, cpu), b = encode_and_decode(x, coding, gpu);
        EXPECT_EQ(a.sent, b.sent) << name << " " << n;
        EXPECT_EQ(a.left, b.left) << name << " " << n;
      }
}

TEST_F(GpuGradientCodes, ARejectedStepRestoresResiduals) {
  const ExecContext ctx = poisoned_device_context({Backend::cuda, 0});
  const Floats old = similar_floats(500, 15, 1), later = similar_floats(500, 16, 1);
  const Tensor kept = device_floats(old, ctx), pending = device_floats(later, ctx);
  settle_residuals_kernel({kept, pending, state_tensor({.accepted = 0}, ctx)}, ctx);
  EXPECT_EQ(to_host<float>(pending, ctx.stream), old);
}

}  // namespace
}  // namespace ring::test
