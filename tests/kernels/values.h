#pragma once
// Helpers of several kernel tests: random tensors, their values on the host, and comparisons.

#include <cmath>
#include <limits>

#include "tests/op_case.h"

namespace ring::test {

inline constexpr float kInfinity = std::numeric_limits<float>::infinity();

inline Tensor random_tensor(const std::string& name, const Shape& shape, const ExecContext& ctx, double scale = 1) {
  return make_tensor(shape, DType::f32, random_values(name, shape.numel(), scale), ctx);
}

// Returns `count` elements of memory, copied to the host.
template <class T>
std::vector<T> read_elements(const Tensor& t, std::int64_t count, const ExecContext& ctx) {
  std::vector<T> host(static_cast<std::size_t>(count));
  if (count > 0) ctx.stream.impl().copy(host.data(), t.raw(), host.size() * sizeof(T));
  ctx.stream.synchronize();
  return host;
}

// Returns columns [begin, end) of a row-major matrix.
inline Values columns_of(const Values& whole, std::int64_t columns, std::int64_t begin, std::int64_t end) {
  Values v;
  for (auto row = whole.begin(); row < whole.end(); row += columns) v.insert(v.end(), row + begin, row + end);
  return v;
}

inline double dot(const Values& a, const Values& b) {
  double sum = 0;
  for (std::size_t i = 0; i < a.size(); ++i) sum += a[i] * b[i];
  return sum;
}

// Returns the L2 error relative to `want`; infinity if the lengths differ.
inline double relative_error(const Values& got, const Values& want) {
  double error = 0, size = 0;
  for (std::size_t i = 0; i < want.size(); ++i) {
    error += (got[i] - want[i]) * (got[i] - want[i]);
    size += want[i] * want[i];
  }
  return got.size() == want.size() ? std::sqrt(error / size) : INFINITY;
}

// Returns the error bound of results that are rounded to `t` once.
inline double tolerance(DType t) { return t == DType::bf16 ? 4e-3 : 1e-5; }

}  // namespace ring::test
