#pragma once
// Helpers of the FP8 tests: quantization as defined, in float64; matrices on the host; comparisons of products.

#include <cmath>
#include <limits>

#include "kernels/fp8.h"
#include "tests/e4m3.h"
#include "tests/kernels/op_case_checks.h"
#include "tests/kernels/target.h"

namespace ring::test {

inline constexpr double kInf = std::numeric_limits<double>::infinity();

// A quantized matrix on the host, with its rows contiguous.
struct HostFp8 {
  std::vector<std::uint8_t> values;
  std::vector<float> scales;
  bool operator==(const HostFp8&) const = default;
};
template <class T>
std::vector<T> read_rows(const Tensor& t, const ExecContext& ctx) {
  std::vector<T> rows;
  for (std::int64_t r = 0; r < t.dim(0); ++r) {
    const std::vector<T> row = to_host<T>(t.narrow(0, r, 1).view({t.dim(1)}), ctx.stream);
    rows.insert(rows.end(), row.begin(), row.end());
  }
  return rows;
}
inline HostFp8 read(const Fp8Matrix& m, const ExecContext& ctx) {
  return {read_rows<std::uint8_t>(m.values, ctx), read_rows<float>(m.scales, ctx)};
}

struct Extents {
  std::int64_t rows, columns;
};
inline constexpr Extents kExtents[] = {{1, 1},     {5, 130},   {128, 128}, {130, 16},  {200, 300},
                                       {257, 264}, {384, 128}, {96, 1000}, {1000, 96}, {129, 129}};

// A row-major matrix [rows,columns] with blocks of `height` x `width`; scales by block row, then block column.
struct Quantized {
  std::vector<std::uint8_t> values;
  Values scales, decoded;
};
inline Quantized quantized(const Values& x, const Extents& e, std::int64_t height, std::int64_t width) {
  Quantized q{std::vector<std::uint8_t>(x.size()), {}, Values(x.size())};
  for (std::int64_t top = 0; top < e.rows; top += height)
    for (std::int64_t left = 0; left < e.columns; left += width) {
      const auto each = [&](const auto& f) {
        for (std::int64_t r = top; r < std::min(top + height, e.rows); ++r)
          for (std::int64_t c = left; c < std::min(left + width, e.columns); ++c)
            f(static_cast<std::size_t>(r * e.columns + c));
      };
      double max = 0;
      each([&](std::size_t i) { max = std::isnan(x[i]) ? max : std::max(max, std::abs(x[i])); });
      const double scale = scale_of(max);
      q.scales.push_back(scale);
      each([&](std::size_t i) {
        q.values[i] =
            std::isinf(max) && std::isfinite(x[i]) ? (std::signbit(x[i]) ? 0x80 : 0) : nearest_code(x[i] / scale);
        q.decoded[i] = e4m3_value(q.values[i]) * scale;
      });
    }
  return q;
}

template <class T>
std::vector<T> transposed(const std::vector<T>& x, std::int64_t rows, std::int64_t columns) {
  std::vector<T> t;
  for (std::int64_t c = 0; c < columns; ++c)
    for (std::int64_t r = 0; r < rows; ++r) t.push_back(x[static_cast<std::size_t>(r * columns + c)]);
  return t;
}

// Random numbers of very different sizes, with blocks of zeros, of subnormal numbers and of the largest numbers. Unless
// finite, also a NaN and an infinity.
inline Values planted(const Extents& e, DType dtype, bool finite) {
  Values x = random_values("x", e.rows * e.columns);
  const auto block = [](std::int64_t i) { return i / kFp8Block; };
  for (std::int64_t r = 0; r < e.rows; ++r)
    for (std::int64_t c = 0; c < e.columns; ++c) {
      double& v = x[static_cast<std::size_t>(r * e.columns + c)];
      v = std::ldexp(v, static_cast<int>((r * 7 + c * 3) % 23) - 12);
      if (finite) continue;
      if (r % 37 == 3 || c % 41 == 5) v = 0;
      if (block(r) == 1 && block(c) == 0) v = std::ldexp(v, -135);
      if (block(r) == 0 && block(c) == 1) v = std::ldexp(v, 126);
      if (r % 61 == 17 && c == 9) v = kNaN;
      if (r % 67 == 11 && c % 128 == 77) v = r % 2 ? kInf : -kInf;
      if (r % 29 == 8 && c == 2) v = -0.0;
    }
  for (double& v : x) v = dtype == DType::bf16 ? to_float(to_bf16(static_cast<float>(v))) : static_cast<float>(v);
  return x;
}

class Fp8 : public OnTarget {
 protected:
  Tensor make(const Extents& e, const Values& x, const ExecContext& ctx) const {
    return make_tensor({e.rows, e.columns}, GetParam().dtype, x, ctx);
  }
};

// Calls f with every kernel of the slot on the device that supports the arguments.
template <class Args, class F>
inline void with_each_kernel(const Kernel<Args>& slot, const Args& args, const ExecContext& ctx, const F& f) {
  int count = 0;
  for (const auto& c : slot.candidates(ctx.stream.device().backend)) {
    if (c.supports && !c.supports(args, ctx)) continue;
    SCOPED_TRACE(c.name);
    EXPECT_NO_THROW(f(c.fn));
    ++count;
  }
  EXPECT_GT(count, 0) << "no kernel";
}

inline std::vector<float> floats(const Values& v) { return {v.begin(), v.end()}; }

struct Product {
  std::int64_t m, n, k;
};
inline constexpr Product kProducts[] = {{1, 8, 16},      {128, 128, 128}, {64, 136, 384}, {130, 72, 300},
                                        {60, 200, 1000}, {257, 128, 40},  {16, 264, 520}, {300, 200, 256}};

// Products with more tiles than a GPU has SMs, for large and for small tiles.
inline constexpr Product kLargeProducts[] = {{4096, 2048, 128}, {2048, 2304, 256}};

inline std::vector<Product> products(Backend backend) {
  std::vector<Product> all(std::begin(kProducts), std::end(kProducts));
  if (backend == Backend::cuda) all.insert(all.end(), std::begin(kLargeProducts), std::end(kLargeProducts));
  return all;
}

// Error bounds. Tensor cores truncate each term of a sum about 13 bits below the leading bit of the largest term
// (DeepSeek-V3, section 3.5.2).
struct Bounds {
  double relative, of_terms;
};

// Compares elements with their values in float64, in as many rows as a test has time for. The output is the sum of
// `times` products and of `added`, unless that is empty.
inline void expect_product(const Values& got, const Values& a, const Values& b, const Product& p, const Bounds& bounds,
                           double times = 1, const Values& added = {}) {
  ASSERT_EQ(std::ssize(got), p.m * p.n);
  const std::int64_t step = 1 + p.m * p.n * p.k / (1 << 25);
  for (std::int64_t m = 0; m < p.m; m += step)
    for (std::int64_t n = 0; n < p.n; ++n) {
      double sum = added.empty() ? 0 : added[static_cast<std::size_t>(m * p.n + n)], magnitude = std::abs(sum);
      for (std::int64_t k = 0; k < p.k; ++k) {
        const double term = a[static_cast<std::size_t>(m * p.k + k)] * b[static_cast<std::size_t>(n * p.k + k)];
        sum += times * term, magnitude += times * std::abs(term);
      }
      const double element = got[static_cast<std::size_t>(m * p.n + n)];
      ASSERT_LE(std::abs(element - sum), bounds.relative * std::abs(sum) + bounds.of_terms * magnitude)
          << "row " << m << ", column " << n << ": " << element << ", expected " << sum;
    }
}

}  // namespace ring::test
