#pragma once
// Softmax of rows of scores, which are padded to whole vectors so that loops have no remainder.

#include <cmath>
#include <cstdint>
#include <limits>

#include "kernels/cpu/vec.h"

namespace ring::cpu {

constexpr float kMinusInf = -std::numeric_limits<float>::infinity();

// Rounds n up to a multiple of kLanes.
inline std::int64_t whole_vectors(std::int64_t n) { return (n + kLanes - 1) / kLanes * kLanes; }

// Returns the largest of n numbers; -inf if n is 0.
inline float row_max(const float* s, std::int64_t n) {
  return max_of(n, [=](std::int64_t j) { return s[j]; });
}

// Replaces each of n scores s by cap * tanh(s / cap). Does nothing if cap is 0.
inline void cap_scores(float* s, std::int64_t n, float cap) {
  if (cap == 0) return;
  const float inverse = 1 / cap;
#pragma GCC ivdep
  for (std::int64_t j = 0; j < n; ++j) s[j] = cap * tanh_fast(s[j] * inverse);
}

// Replaces n numbers s by exp(s - shift), and returns their sum.
inline float row_exp(float* s, std::int64_t n, float shift) {
#pragma GCC ivdep
  for (std::int64_t j = 0; j < n; ++j) s[j] = exp_fast(s[j] - shift);
  return sum_of(n, [=](std::int64_t j) { return s[j]; });
}

}  // namespace ring::cpu
