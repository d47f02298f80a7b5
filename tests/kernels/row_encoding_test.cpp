// Rows in the types of messages, on every available backend, against definitions in fp64.

#include "kernels/row_encoding.h"

#include "tests/kernels/fp8_checks.h"
#include "tests/kernels/poison_allocator.h"

namespace ring::test {
namespace {

constexpr std::int64_t kTensorRows = 40;

struct EncodingCase {
  std::int64_t heads, dim, all, width,
      at;  // tensors have `all` heads of `width` elements, encoded from head 1 and `at`
  std::int64_t first, count, step;
  DType type;  // of the tensor

  Tensor heads_of(const Tensor& t) const { return t.narrow(1, 1, heads).narrow(2, at, dim); }
  std::size_t index(std::int64_t i, std::int64_t h, std::int64_t d) const {  // in the tensor, of an encoded element
    return static_cast<std::size_t>(((first + i * step) * all + h + 1) * width + at + d);
  }
  template <class Fn>
  void for_rows(const Fn& fn) const {  // fn(row of a head, its index among encoded rows)
    for (std::int64_t i = 0; i < count; ++i)
      for (std::int64_t h = 0; h < heads; ++h) fn(index(i, h, 0), i * heads + h);
  }
};

std::vector<EncodingCase> encoding_cases() {
  std::vector<EncodingCase> all;
  for (const DType type : {DType::f32, DType::bf16}) {
    all.push_back({3, 64, 5, 64, 0, 0, kTensorRows, 1, type});
    all.push_back({2, 256, 4, 256, 0, 3, 30, 1, type});
    all.push_back({2, 96, 3, 112, 16, 1, 9, 4, type});
    all.push_back({2, 9, 3, 11, 1, 2, 13, 2, type});
    all.push_back({1, 1200, 3, 1200, 0, 0, 5, 1, type});
    all.push_back({4, 8, 6, 8, 0, 7, 0, 1, type});
  }
  return all;
}

// Returns normal numbers, each row of a head with a different scale, and rows of zeros.
Values rows_of_all_scales(const EncodingCase& c) {
  Values v = random_values("rows", kTensorRows * c.all * c.width);
  for (std::size_t i = 0; i < v.size(); ++i) {
    const auto row = static_cast<int>(i / static_cast<std::size_t>(c.width));
    v[i] = row % 7 == 0 ? 0 : std::ldexp(v[i], row % 60 - 30);
  }
  return v;
}

EncodedRows empty_rows(const EncodingCase& c, DType type, const ExecContext& ctx) {
  EncodedRows e{ctx.empty({c.count, c.heads, c.dim}, type), {}};
  if (type == DType::u8) e.scales = ctx.empty({c.count, c.heads}, DType::u8);
  return e;
}

std::vector<std::uint8_t> bytes_of(const Tensor& t, const ExecContext& ctx) {
  return to_host<std::uint8_t>(t.view({t.numel()}), ctx.stream);
}

std::uint8_t biased_exponent(double scale) { return static_cast<std::uint8_t>(std::ilogb(scale) + 127); }

// Encodes values and expects codes, scales and decoded values by definition; x: as the tensor has them.
void expect_codes(const EncodingCase& c, const Tensor& src, const Values& x, const ExecContext& ctx) {
  const EncodedRows e = empty_rows(c, DType::u8, ctx);
  encode_rows_kernel({c.heads_of(src), e, c.first, c.step}, ctx);
  const std::vector<std::uint8_t> codes = bytes_of(e.values, ctx), scales = bytes_of(e.scales, ctx);
  const Tensor dst = make_tensor(src.shape(), c.type, x, ctx);
  decode_rows_kernel({e, c.heads_of(dst), c.first, c.step}, ctx);
  Values want = x;
  c.for_rows([&](std::size_t from, std::int64_t row) {
    double max = 0;
    for (std::int64_t d = 0; d < c.dim; ++d) max = std::max(max, std::abs(x[from + static_cast<std::size_t>(d)]));
    const double scale = scale_of(max);
    ASSERT_EQ(scales[static_cast<std::size_t>(row)], biased_exponent(scale));
    for (std::int64_t d = 0; d < c.dim; ++d) {
      const std::uint8_t code = nearest_code(x[from + static_cast<std::size_t>(d)] / scale);
      ASSERT_EQ(codes[static_cast<std::size_t>(row * c.dim + d)], code) << "row " << row << ", element " << d;
      want[from + static_cast<std::size_t>(d)] = e4m3_value(code) * scale;
    }
  });
  EXPECT_EQ(read_values(dst, ctx), want);
  const EncodedRows again = empty_rows(c, DType::u8, ctx);  // of decoded rows: loses nothing more
  encode_rows_kernel({c.heads_of(dst), again, c.first, c.step}, ctx);
  decode_rows_kernel({again, c.heads_of(dst), c.first, c.step}, ctx);
  EXPECT_EQ(read_values(dst, ctx), want);
}

double rounded_to_bf16(double x) { return to_float(to_bf16(static_cast<float>(x))); }

void expect_bf16(const EncodingCase& c, const Tensor& src, const Values& x, const ExecContext& ctx) {
  const EncodedRows e = empty_rows(c, DType::bf16, ctx);
  encode_rows_kernel({c.heads_of(src), e, c.first, c.step}, ctx);
  const Tensor dst = make_tensor(src.shape(), c.type, x, ctx);
  decode_rows_kernel({e, c.heads_of(dst), c.first, c.step}, ctx);
  Values want = x;
  const auto for_elements = [&](const auto& fn) {
    c.for_rows([&](std::size_t from, std::int64_t) {
      for (std::int64_t d = 0; d < c.dim; ++d) fn(from + static_cast<std::size_t>(d));
    });
  };
  for_elements([&](std::size_t i) { want[i] = rounded_to_bf16(x[i]); });
  EXPECT_EQ(read_values(dst, ctx), want);
  if (c.type == DType::bf16) return;
  decode_rows_kernel({e, c.heads_of(dst), c.first, c.step, true}, ctx);
  for_elements([&](std::size_t i) { want[i] *= 2; });
  EXPECT_EQ(read_values(dst, ctx), want);
}

void expect_all_encodings(const ExecContext& ctx) {
  for (const EncodingCase& c : encoding_cases()) {
    SCOPED_TRACE(str(c.count, " rows of ", c.heads, " heads of ", c.dim, ", ", c.type));
    const Tensor src = make_tensor({kTensorRows, c.all, c.width}, c.type, rows_of_all_scales(c), ctx);
    const Values x = read_values(src, ctx);
    expect_codes(c, src, x, ctx);
    expect_bf16(c, src, x, ctx);
  }
}

// NaN stays where it is. An infinity has no scale, so its row of a head becomes NaN, and no other row changes.
void expect_nan(const ExecContext& ctx) {
  for (const DType type : {DType::f32, DType::bf16}) {
    const std::int64_t dim = 32;
    Values x = random_values("nan", 4 * 2 * dim);
    const auto at = [&](std::int64_t row, std::int64_t d) -> double& {
      return x[static_cast<std::size_t>(row * dim + d)];
    };
    at(1, 5) = kNaN, at(3, 31) = kInf, at(6, 0) = -kInf;
    const Tensor src = make_tensor({4, 2, dim}, type, x, ctx);
    for (const DType message : {DType::u8, DType::bf16}) {
      const EncodedRows e = empty_rows({2, dim, 2, dim, 0, 0, 4, 1, type}, message, ctx);
      encode_rows_kernel({src, e}, ctx);
      const Tensor dst = ctx.empty(src.shape());
      decode_rows_kernel({e, dst}, ctx);
      const Values y = read_values(dst, ctx);
      for (std::int64_t row = 0; row < 8; ++row)
        for (std::int64_t d = 0; d < dim; ++d) {
          const bool infinite = row == 3 || row == 6, nan = row == 1 && d == 5;
          const double got = y[static_cast<std::size_t>(row * dim + d)];
          if (message == DType::u8)
            EXPECT_EQ(std::isnan(got), infinite || nan) << row << ", " << d;
          else
            EXPECT_EQ(std::isfinite(got), std::isfinite(at(row, d))) << row << ", " << d;
        }
    }
  }
}

TEST(RowEncoding, RoundsEachRowOfAHeadByDefinition) { expect_all_encodings(poisoned_context(2)); }
TEST(RowEncoding, NaNAndInfinitiesArriveAsNaN) { expect_nan(poisoned_context(1)); }

TEST(GpuRowEncoding, RoundsEachRowOfAHeadByDefinition) {
  if (!backend_available(Backend::cuda)) GTEST_SKIP() << "no GPU";
  expect_all_encodings(poisoned_device_context({Backend::cuda, 0}));
}
TEST(GpuRowEncoding, NaNAndInfinitiesArriveAsNaN) {
  if (!backend_available(Backend::cuda)) GTEST_SKIP() << "no GPU";
  expect_nan(poisoned_device_context({Backend::cuda, 0}));
}

TEST(RowEncoding, RowsThatDoNotFitAreRefused) {
  const ExecContext ctx = poisoned_context(1);
  const Tensor t = ctx.zeros({4, 2, 8}), half = ctx.zeros({4, 2, 8}, DType::bf16);
  const EncodedRows rows{ctx.zeros({3, 2, 8}, DType::bf16), {}}, codes{ctx.zeros({3, 2, 8}, DType::u8), {}};
  EXPECT_THROW(encode_rows_kernel({t, rows, 2}, ctx), Error) << "rows 2 to 4 of 4";
  EXPECT_THROW(encode_rows_kernel({t, rows, 0, 2}, ctx), Error) << "rows 0, 2 and 4 of 4";
  EXPECT_THROW(encode_rows_kernel({t, codes}, ctx), Error) << "no scales";
  EXPECT_THROW(encode_rows_kernel({t.narrow(2, 0, 4), rows}, ctx), Error) << "heads of 4 elements";
  EXPECT_THROW(decode_rows_kernel({rows, half, 0, 1, true}, ctx), Error) << "sums are f32";
}

}  // namespace
}  // namespace ring::test
