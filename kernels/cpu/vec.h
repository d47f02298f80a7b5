#pragma once
// Inline math that g++ and clang auto-vectorize without -ffast-math: no branches, no library calls; propagates NaN.
// Polynomials are fits; each function states its maximum error.

#include <bit>
#include <cstdint>
#include <limits>

namespace ring::cpu {

// Independent accumulators of a reduction, which let the compiler vectorize without reordering additions.
inline constexpr std::int64_t kLanes = 32;

namespace detail {
template <int width, class Combine>
inline void fold(float* lanes, const Combine& combine) {
  for (int j = 0; j < width; ++j) lanes[j] = combine(lanes[j], lanes[j + width]);
  if constexpr (width > 1) fold<width / 2>(lanes, combine);
}

template <class F, class Combine>
inline float reduce(std::int64_t n, float start, const F& f, const Combine& combine) {
  float lanes[kLanes];
  for (std::int64_t j = 0; j < kLanes; ++j) lanes[j] = start;
  std::int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes)
    for (std::int64_t j = 0; j < kLanes; ++j) lanes[j] = combine(lanes[j], f(i + j));
  for (std::int64_t j = 0; i < n; ++i, ++j) lanes[j] = combine(lanes[j], f(i));
  fold<kLanes / 2>(lanes, combine);
  return lanes[0];
}
}  // namespace detail

// Return the sum and the maximum of f(i) over i in [0, n). The order of summation depends only on n.
template <class F>
inline float sum_of(std::int64_t n, const F& f) {
  return detail::reduce(n, 0.0f, f, [](float a, float b) { return a + b; });
}
template <class F>
inline float max_of(std::int64_t n, const F& f) {  // returns -inf if n = 0; ignores NaN
  return detail::reduce(n, -std::numeric_limits<float>::infinity(), f, [](float a, float b) { return a < b ? b : a; });
}
inline float dot(const float* x, const float* y, std::int64_t n) {
  return sum_of(n, [=](std::int64_t i) { return x[i] * y[i]; });
}

// Returns 2^n for n in [-126, 128]; infinity for 128.
inline float power_of_two(std::uint32_t n) { return std::bit_cast<float>((n + 127u) << 23); }

// Returns e^x with a relative error of 1e-7 over the whole range, including denormals, 0 and infinity.
inline float exp_fast(float x) {
  x = x < -104.0f ? -104.0f : x;
  x = x > 89.0f ? 89.0f : x;
  constexpr float round = 12582912.0f;  // 1.5 * 2^23: adding it leaves the nearest integer in the low bits
  const float shifted = x * 1.44269504f + round;
  const float n = shifted - round;
  const std::uint32_t k = std::bit_cast<std::uint32_t>(shifted) - std::bit_cast<std::uint32_t>(round);
  const float r = (x - n * 0.693145752f) - n * 1.42860677e-6f;  // ln 2 in two parts, the first with a short mantissa
  float p = 0.00139411084f;
  p = p * r + 0.0083751264f;
  p = p * r + 0.0416663529f;
  p = p * r + 0.166664155f;
  p = p * r + 0.5f;
  p = p * r + 1.00000004f;
  p = p * r + 1.0f;
  const std::uint32_t half = static_cast<std::uint32_t>(static_cast<std::int32_t>(k) >> 1);
  return p * power_of_two(half) * power_of_two(k - half);
}

// Returns 1 / (1 + e^-x) with a relative error of 2e-7.
inline float sigmoid_fast(float x) { return 1.0f / (1.0f + exp_fast(-x)); }

// Returns tanh(x) with a relative error of 3e-7.
inline float tanh_fast(float x) {
  const float a = x < 0 ? -x : x, u = x * x;
  float p = -0.00584964394f;
  p = p * u + 0.0207513491f;
  p = p * u - 0.0537679835f;
  p = p * u + 0.133316796f;
  p = p * u - 0.333332828f;
  p = p * u + 1.0f;
  const float large = 1.0f - 2.0f / (1.0f + exp_fast(2.0f * a));
  const float y = a < 0.6f ? p * a : large;
  return x < 0 ? -y : y;
}

// Returns c0 + c1 x + c2 x^2 + ...
template <class... More>
inline float polynomial(float x, float c0, More... more) {
  if constexpr (sizeof...(more) == 0)
    return c0;
  else
    return c0 + x * polynomial(x, more...);
}

// normal_cdf_fast() and gelu_slope_fast() compute 1/2 plus an odd rational function, fitted for the smallest absolute
// error on [-end, end]. Beyond this interval they return 0 or 1, whose error is smaller.

// Returns the CDF of the standard normal with an absolute error of 2e-7, or 3e-7 without fused multiply-adds.
inline float normal_cdf_fast(float x) {
  constexpr float end = 5.6f;
  const float low = x < -end ? -end : x, a = low > end ? end : low, u = a * a;
  const float p =
      polynomial(u, 0.398942222f, 0.0343761573f, 0.00470726281f, 0.000173851298f, 6.3565403e-06f, 2.21453032e-08f);
  const float q = polynomial(u, 1.0f, 0.252833961f, 0.0289401173f, 0.00191298132f, 7.51021301e-05f, 1.18021233e-06f);
  const float y = 0.5f + a * p / q;
  return x < -end ? 0.0f : y;
}

// Returns the derivative of x cdf(x), which is cdf(x) + x pdf(x), with an absolute error of 3e-7, or 4e-7 without fused
// multiply-adds.
inline float gelu_slope_fast(float x) {
  constexpr float end = 5.9f;
  const float low = x < -end ? -end : x, a = low > end ? end : low, u = a * a;
  const float p = polynomial(u, 0.79788531f, -0.0312035045f, 0.0142225139f, 1.66949869e-05f, 3.56607281e-05f,
                             1.84792535e-07f, 3.04506613e-11f);
  const float q = polynomial(u, 1.0f, 0.294233285f, 0.0408846591f, 0.00350641863f, 0.000190855578f, 8.79047152e-06f);
  const float y = 0.5f + a * p / q;
  return x < -end ? 0.0f : y;
}

// Cosine and sine of an angle, with an absolute error of 1e-7. turns: the angle / 2 pi, in [-1/2, 1/2].
struct Rotation {
  float cos, sin;
};
inline Rotation rotation_fast(float turns) {
  constexpr float round = 12582912.0f;
  const float shifted = turns * 4.0f + round;
  const std::uint32_t quadrant = std::bit_cast<std::uint32_t>(shifted);
  const float f = turns - (shifted - round) * 0.25f, u = f * f;
  float s = -75.4016127f;
  s = s * u + 81.5925429f;
  s = s * u - 41.3416626f;
  s = (s * u + 6.28318529f) * f;
  float c = 59.2201687f;
  c = c * u - 85.4428447f;
  c = c * u + 64.9393161f;
  c = c * u - 19.7392087f;
  c = c * u + 1.0f;
  const bool swap = quadrant & 1;
  const float cosine = swap ? s : c, sine = swap ? c : s;
  return {(quadrant + 1) & 2 ? -cosine : cosine, quadrant & 2 ? -sine : sine};
}

}  // namespace ring::cpu
