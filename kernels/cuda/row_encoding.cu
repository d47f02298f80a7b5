#include "kernels/row_encoding.h"

#include <bit>

#include "kernels/cuda/fp8.cuh"
#include "kernels/cuda/launch.h"
#include "kernels/fp8.h"

namespace ring::cuda {
namespace {

constexpr int kCodes = 8;  // elements that a thread converts at a time, if rows are aligned

// Converts between encoded rows of type M (bf16, or bytes for e4m3) and rows of a tensor of type T. Each group of
// `lanes` neighbouring threads, a power of two within a warp, handles one row of a head.
template <class T, class M>
struct EncodingParams {
  StridedRows<T> rows;
  Divider heads;
  M* values;
  std::uint8_t* scales;
  std::uint32_t count;  // rows of heads
  int dim, lanes;
};

// A thread group's row of a head. Threads past the last row get row 0, so that whole warps can shuffle.
template <class T, class M>
struct GroupRow {
  std::uint32_t index;
  bool inside;
  int column;  // first column of the thread
  T* tensor;
  M* values;

  __device__ GroupRow(const EncodingParams<T, M>& p, int each) {
    const std::int64_t i = thread_x() / p.lanes;
    inside = i < p.count;
    index = inside ? static_cast<std::uint32_t>(i) : 0;
    column = static_cast<int>(threadIdx.x) % p.lanes * each;
    const std::uint32_t row = p.heads.quotient(index);
    tensor = p.rows.at(row, index - row * p.heads.divisor);
    values = p.values + std::int64_t{index} * p.dim;
  }
};

template <int n>
__device__ void store_codes(std::uint8_t* to, const Floats<n>& f, float factor) {
  if constexpr (n == 1)
    *to = static_cast<std::uint8_t>(pack_e4m3(f.v[0] * factor, 0, 0, 0));
  else
    *reinterpret_cast<uint2*>(to) = {pack_e4m3(f.v[0] * factor, f.v[1] * factor, f.v[2] * factor, f.v[3] * factor),
                                     pack_e4m3(f.v[4] * factor, f.v[5] * factor, f.v[6] * factor, f.v[7] * factor)};
}

template <class T, int n>
__global__ void __launch_bounds__(kBlock) encode_e4m3(const EncodingParams<T, std::uint8_t> p) {
  const GroupRow<T, std::uint8_t> row(p, n);
  const int across = p.lanes * n;
  Pack<T, n> held{};  // the last columns that the thread loaded: its only ones, unless the row is long
  float max = 0;      // fmaxf ignores NaN
  for (int c = row.column; c < p.dim; c += across) {
    held = load_pack<T, n>(row.tensor + c);
    const Floats<n> f = unpack(held);
#pragma unroll
    for (int j = 0; j < n; ++j) max = fmaxf(max, fabsf(f.v[j]));
  }
  for (int distance = p.lanes / 2; distance > 0; distance /= 2)
    max = fmaxf(max, __shfl_xor_sync(0xffffffffu, max, distance));
  if (!row.inside) return;
  const Fp8Scale s = fp8_tensor_scale(max);
  if (row.column == 0) p.scales[row.index] = static_cast<std::uint8_t>(__float_as_uint(s.scale) >> 23);
  for (int c = row.column; c < p.dim; c += across) {
    if (p.dim > across) held = load_pack<T, n>(row.tensor + c);
    store_codes<n>(row.values + c, unpack(held), s.factor);
  }
}

template <class T, int n>
__global__ void __launch_bounds__(kBlock) encode_bf16(const EncodingParams<T, __nv_bfloat16> p) {
  const GroupRow<T, __nv_bfloat16> row(p, n);
  for (int c = row.column; row.inside && c < p.dim; c += p.lanes * n)
    store_pack(row.values + c, pack<__nv_bfloat16>(unpack(load_pack<T, n>(row.tensor + c))));
}

template <bool add, class T, class M, int n>
__global__ void __launch_bounds__(kBlock) decode_elements(const EncodingParams<T, M> p) {
  const GroupRow<T, M> row(p, n);
  const float scale = sizeof(M) == 1 ? row_scale(p.scales[row.index]) : 1;
  for (int c = row.column; row.inside && c < p.dim; c += p.lanes * n) {
    Floats<n> f;
    if constexpr (sizeof(M) == 1) {
      f = load_e4m3<n>(row.values + c);
#pragma unroll
      for (int j = 0; j < n; ++j) f.v[j] *= scale;
    } else {
      f = unpack(load_pack<M, n>(row.values + c));
    }
    if constexpr (add) {
      const Floats<n> before = unpack(load_pack<T, n>(row.tensor + c));
#pragma unroll
      for (int j = 0; j < n; ++j) f.v[j] += before.v[j];
    }
    store_pack(row.tensor + c, pack<T>(f));
  }
}

template <class T, class M>
EncodingParams<T, M> encoding_params(std::string_view op, const EncodedRows& e, const Tensor& t, std::int64_t first,
                                     std::int64_t step, int each) {
  const std::int64_t heads = t.dim(1), dim = t.dim(2), count = e.values.dim(0) * heads;
  return {{device_data<T>(t) + first * t.stride(0), step * t.stride(0), t.stride(1)},
          divider_of(op, count, heads),
          reinterpret_cast<M*>(e.values.raw()),
          e.scales.defined() ? e.scales.data<std::uint8_t>() : nullptr,
          static_cast<std::uint32_t>(count),
          static_cast<int>(dim),
          static_cast<int>(std::bit_ceil(std::min<std::uint64_t>(
              static_cast<std::uint64_t>(divide_up(dim, std::int64_t{each})), std::uint64_t{kWarp})))};
}

// Returns true if threads can load and store kCodes elements at a time.
bool has_packs(const EncodedRows& e, const Tensor& t, std::int64_t first) {
  const auto size = static_cast<std::int64_t>(size_of(t.dtype()));
  const bool rows =
      is_aligned(t.raw() + first * t.stride(0) * size) && t.stride(0) * size % 16 == 0 && t.stride(1) * size % 16 == 0;
  return rows && t.dim(2) % kCodes == 0 && (e.scales.defined() ? is_aligned<8> : is_aligned<16>)(e.values.raw());
}

template <class T, class M>
void launch_on_rows(const ExecContext& ctx, void (*kernel)(const EncodingParams<T, M>), const EncodingParams<T, M>& p) {
  launch(ctx, {grid_of(divide_up(std::int64_t{p.count} * p.lanes, std::int64_t{kBlock}))}, kernel, p);
}

void run_encode(const EncodeRows& a, const ExecContext& ctx) {
  constexpr std::string_view op = "encode_rows";
  check(a);
  if (a.out.values.numel() == 0) return;
  const bool packs = has_packs(a.out, a.src, a.first);
  visit_float(op, a.src.dtype(), [&]<class T>() {
    const auto params = [&]<class M>() {
      return encoding_params<T, M>(op, a.out, a.src, a.first, a.step, packs ? kCodes : 1);
    };
    if (a.out.scales.defined())
      launch_on_rows(ctx, packs ? encode_e4m3<T, kCodes> : encode_e4m3<T, 1>,
                     params.template operator()<std::uint8_t>());
    else
      launch_on_rows(ctx, packs ? encode_bf16<T, kCodes> : encode_bf16<T, 1>,
                     params.template operator()<__nv_bfloat16>());
  });
}

template <class T, class M>
void launch_decode(const DecodeRows& a, const ExecContext& ctx) {
  const bool packs = has_packs(a.rows, a.dst, a.first);
  const auto p = encoding_params<T, M>("decode_rows", a.rows, a.dst, a.first, a.step, packs ? kCodes : 1);
  if constexpr (sizeof(T) == 4)
    if (a.add)
      return launch_on_rows(ctx, packs ? decode_elements<true, T, M, kCodes> : decode_elements<true, T, M, 1>, p);
  launch_on_rows(ctx, packs ? decode_elements<false, T, M, kCodes> : decode_elements<false, T, M, 1>, p);
}

void run_decode(const DecodeRows& a, const ExecContext& ctx) {
  check(a);
  if (a.rows.values.numel() == 0) return;
  visit_float("decode_rows", a.dst.dtype(), [&]<class T>() {
    if (a.rows.scales.defined())
      launch_decode<T, std::uint8_t>(a, ctx);
    else
      launch_decode<T, __nv_bfloat16>(a, ctx);
  });
}

const bool added_row_encoding[] = {encode_rows_kernel.add(Backend::cuda, {"rows", run_encode}),
                                   decode_rows_kernel.add(Backend::cuda, {"rows", run_decode})};

}  // namespace
}  // namespace ring::cuda
