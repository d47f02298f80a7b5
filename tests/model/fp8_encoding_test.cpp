// Owners of some rows of a weight encode what quantizing the whole weight gives.
#include "model/fp8_encoding.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>

#include "core/philox.h"

namespace ring::test {
namespace {

constexpr std::int64_t kRows = 400, kColumns = 272;

// Random rows of very different sizes; `bad` is one of the elements.
Tensor make_weight(float bad, const ExecContext& ctx) {
  const Tensor w = ctx.empty({kRows, kColumns});
  for (std::int64_t i = 0; i < w.numel(); ++i) {
    const auto normal = static_cast<float>(random_normal({1, 2, 3}, static_cast<std::uint64_t>(i)));
    w.data<float>()[i] = std::ldexp(normal, static_cast<int>(i / kColumns % 29) - 14);
  }
  w.data<float>()[300 * kColumns + 17] = bad;
  return w;
}

Param make_param() {
  Param p;
  p.parts.push_back({.name = "w", .rows = kRows, .whole = {kRows, kColumns}, .start = {0, 0}});
  p.shape = {kRows, kColumns};
  return p;
}

// Encodes the rows of several owners, each in memory of its own, and sends their ranges to one of them.
Fp8Matrix gathered(const Fp8Encoding& encoding, const Param& p, const Tensor& w,
                   const std::vector<std::int64_t>& begins, const ExecContext& ctx) {
  const Tensor all = ctx.zeros({encoding.bytes(p)}, DType::u8), max = encoding.needs_max() ? ctx.zeros({1}) : Tensor{};
  const auto rows_at = [&](std::size_t i) {
    const std::int64_t end = i + 1 < begins.size() ? begins[i + 1] : kRows;
    return WeightRows{p, begins[i], w.narrow(0, begins[i], end - begins[i])};
  };
  std::vector<int> sent(static_cast<std::size_t>(all.numel()));
  for (std::size_t i = 0; encoding.needs_max() && i < begins.size(); ++i) encoding.raise_max(rows_at(i), max, ctx);
  for (std::size_t i = 0; i < begins.size(); ++i) {
    const Tensor own = ctx.zeros({encoding.bytes(p)}, DType::u8);
    encoding.encode(rows_at(i), max, own, ctx);
    for (const EncodedRange& r : encoding.ranges(p, begins[i], rows_at(i).values.dim(0))) {
      copy(all.narrow(0, r.begin, r.size), own.narrow(0, r.begin, r.size), ctx.stream);
      for (std::int64_t b = r.begin; b < r.begin + r.size; ++b) ++sent[static_cast<std::size_t>(b)];
    }
  }
  for (std::size_t i = 0; i < sent.size(); ++i)
    EXPECT_TRUE(sent[i] == 1 || (sent[i] == 0 && i + 64 > sent.size())) << "byte " << i << " of " << sent.size();
  return encoding.matrix(p, all);
}

void expect_same(const Tensor& got, const Tensor& want) {
  ASSERT_EQ(got.shape(), want.shape());
  for (std::int64_t r = 0; r < got.dim(0); ++r)
    for (std::int64_t c = 0; c < got.dim(1); ++c) {
      const auto size = static_cast<std::int64_t>(size_of(got.dtype()));
      const auto at = [&](const Tensor& t) { return t.raw() + (r * t.stride(0) + c) * size; };
      ASSERT_EQ(std::memcmp(at(got), at(want), static_cast<std::size_t>(size)), 0) << r << ", " << c;
    }
}

TEST(Fp8Encoding, OfPartsIsThatOfTheWhole) {
  const ExecContext ctx{Stream::cpu(2)};
  const Param p = make_param();
  constexpr float kInf = std::numeric_limits<float>::infinity();
  for (const float bad : {0.0f, kInf, std::numeric_limits<float>::quiet_NaN()})
    for (const Fp8Blocks blocks : {Fp8Blocks::squares, Fp8Blocks::tensor}) {
      const bool tensorwise = blocks == Fp8Blocks::tensor;
      SCOPED_TRACE(str(tensorwise ? "tensor, " : "squares, ", bad));
      const Tensor w = make_weight(bad, ctx);
      const Fp8Matrix want = empty_fp8(kRows, kColumns, blocks, ctx);
      quantize_fp8_kernel({w, want, {}, {tensorwise ? ctx.zeros({1}) : Tensor{}}}, ctx);
      const Fp8Encoding encoding(blocks);
      std::vector<std::vector<std::int64_t>> owners = {{0}, {0, 128}, {0, 256, 384}};
      if (tensorwise) owners.push_back({0, 7, 300, 301});
      for (const std::vector<std::int64_t>& begins : owners) {
        const Fp8Matrix got = gathered(encoding, p, w, begins, ctx);
        expect_same(got.values, want.values);
        expect_same(got.scales, want.scales);
      }
    }
}

TEST(Fp8Encoding, ABlockHasOneOwner) {
  const ExecContext ctx{Stream::cpu(1)};
  const Param p = make_param();
  const Fp8Encoding squares(Fp8Blocks::squares);
  const Tensor encoded = ctx.zeros({squares.bytes(p)}, DType::u8);
  EXPECT_EQ(squares.row_multiple(), 128);
  EXPECT_THROW(squares.encode({p, 64, ctx.zeros({64, kColumns})}, {}, encoded, ctx), Error);
}

}  // namespace
}  // namespace ring::test
