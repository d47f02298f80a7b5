#include "checkpoint/fp8_tensors.h"

#include <algorithm>

namespace ring {
namespace {

// A tensor as a matrix: the elements of one dim are rows of one column.
struct Matrix {
  std::int64_t first_row, rows, first_column, columns, width;  // width: columns of the whole tensor

  Matrix(const Shape& whole, const Shape& start, const Shape& size)
      : first_row(start[0]),
        rows(size[0]),
        first_column(whole.size() == 2 ? start[1] : 0),
        columns(whole.size() == 2 ? size[1] : 1),
        width(whole.size() == 2 ? whole[1] : 1) {
    RING_CHECK(whole.size() == 1 || whole.size() == 2, "FP8 tensors have one or two dims, got ", whole);
  }
  std::int64_t begin() const { return first_row * width; }
  std::int64_t end() const { return (first_row + rows) * width; }
};

bool has_blocks_in_rows(const Shape& whole) { return whole.size() == 2 && whole[1] % kMomentBlock == 0; }

template <class F>
void with_form(Fp8Moment form, const F& f) {
  form == Fp8Moment::e4m3 ? f.template operator()<Fp8Moment::e4m3>() : f.template operator()<Fp8Moment::e4m4>();
}

}  // namespace

std::string scales_name(const std::string& codes, Fp8Moment form) {
  return str(codes, ":", to_string(form), "_scales");
}

std::optional<ScalesOwner> owner_of_scales(const std::string& name) {
  for (const Fp8Moment form : {Fp8Moment::e4m3, Fp8Moment::e4m4})
    if (const std::string suffix = scales_name("", form); name.ends_with(suffix))
      return ScalesOwner{name.substr(0, name.size() - suffix.size()), form};
  return std::nullopt;
}

Shape scales_shape(const Shape& codes) {
  if (has_blocks_in_rows(codes)) return {codes[0], codes[1] / kMomentBlock};
  return {moment_blocks(codes.numel())};
}

bool is_made_of_blocks(const Shape& whole, const Shape& start, const Shape& size) {
  const Matrix m(whole, start, size);
  if (size.numel() == 0) return true;
  if (has_blocks_in_rows(whole)) return m.first_column % kMomentBlock == 0 && m.columns % kMomentBlock == 0;
  return m.columns == m.width && m.begin() % kMomentBlock == 0 &&
         (m.end() % kMomentBlock == 0 || m.end() == whole.numel());
}

StateTensor scales_of(const StateTensor& codes, Fp8Moment form, const Tensor& scales) {
  const Shape &whole = codes.global_shape, &size = codes.local.shape();
  RING_CHECK(is_made_of_blocks(whole, codes.start, size), codes.name, ": ", size, " at ", codes.start,
             " is not made of blocks of ", kMomentBlock);
  StateTensor t{scales_name(codes.name, form), scales_shape(whole), {0}, scales};
  if (has_blocks_in_rows(whole)) {
    t.start = {codes.start[0], codes.start[1] / kMomentBlock};
    t.local = scales.view({size[0], size[1] / kMomentBlock});
  } else if (size.numel() > 0) {
    t.start = {Matrix(whole, codes.start, size).begin() / kMomentBlock};
  }
  return t;
}

void quantize(const float* values, std::int64_t n, Fp8Moment form, std::uint8_t* codes, std::uint8_t* scales) {
  with_form(form, [&]<Fp8Moment f>() {
    for (std::int64_t i = 0; i < n; i += kMomentBlock)
      write_moment_block<f>(values + i, std::min(kMomentBlock, n - i), codes + i, scales + i / kMomentBlock,
                            [](std::int64_t) { return kToNearest; });
  });
}

ScalesRegion scales_region(const Shape& whole, const Region& codes) {
  const Matrix m(whole, codes.start, codes.size);
  const std::int64_t first = m.begin() / kMomentBlock;
  if (has_blocks_in_rows(whole)) return {{{m.first_row, 0}, {m.rows, m.width / kMomentBlock}}, first};
  return {{{first}, {moment_blocks(m.end()) - first}}, first};
}

void dequantize(const Shape& whole, const Region& region, Fp8Moment form, const std::uint8_t* codes,
                const std::uint8_t* scales, float* values) {
  const Matrix m(whole, region.start, region.size);
  const std::int64_t first_block = scales_region(whole, region).first_block;
  with_form(form, [&]<Fp8Moment f>() {
    for (std::int64_t row = 0; row < m.rows; ++row)
      for (std::int64_t column = 0; column < m.columns; ++column) {
        const std::int64_t element = (m.first_row + row) * m.width + m.first_column + column;
        *values++ = from_fp8_moment<f>(*codes++, scales[element / kMomentBlock - first_block]);
      }
  });
}

}  // namespace ring
