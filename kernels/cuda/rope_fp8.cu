#include "kernels/cuda/device/rotation.cuh"
#include "kernels/cuda/quantize_fp8.cuh"
#include "kernels/fp8_producers.h"

namespace ring::cuda {
namespace {

// Computes the cosines and sines [rows, half] of all rows, which all heads use.
__global__ void __launch_bounds__(kBlock)
    rotation_table(const std::int32_t* positions, const float* inv_freq, float sign, std::int64_t count, Divider half,
                   float* cosines, float* sines) {
  const std::int64_t i = thread_x();
  if (i >= count) return;
  const std::uint32_t row = half.quotient(static_cast<std::uint32_t>(i));
  const Rotation r = rotation(positions[row], inv_freq[i - std::int64_t{row} * half.divisor], sign);
  cosines[i] = r.cosine, sines[i] = r.sine;
}

// RoPE as a source (quantize_fp8.cuh). Rotates the first `rotated` columns of each row: heads of 2 * half columns.
template <class T>
struct Rotated {
  using Type = T;
  const T* x;
  std::int64_t stride, rotated;
  int half;
  const float *cosines, *sines;

  // Position of an element.
  //   angle    index of its angle in the tables
  //   partner  offset of the column with which it is rotated, half a head away
  //   sign     sign of the partner's sine term: -1 in a head's first half, +1 in the second
  struct Place {
    std::int64_t angle;
    int partner;
    float sign;
    __device__ Place(const Rotated& r, std::int64_t row, std::int64_t column) {
      const int in_head = static_cast<int>(static_cast<unsigned>(column) % static_cast<unsigned>(2 * r.half));
      const bool second = in_head >= r.half;
      angle = row * r.half + (second ? in_head - r.half : in_head);
      partner = second ? -r.half : r.half;
      sign = second ? 1.0f : -1.0f;
    }
  };
  __device__ T at(std::int64_t row, std::int64_t column) const {
    const T* from = x + row * stride + column;
    if (column >= rotated) return *from;
    const Place p(*this, row, column);
    return from_float<T>(to_float(*from) * cosines[p.angle] + p.sign * to_float(from[p.partner]) * sines[p.angle]);
  }
  __device__ Pack<T, kEach> pack(std::int64_t row, std::int64_t column) const {
    const T* from = x + row * stride + column;
    const Pack<T, kEach> own = load_pack<T, kEach>(from);
    if (column >= rotated) return own;
    const Place p(*this, row, column);
    Floats<kEach> f = unpack(own);
    const Floats<kEach> partner = unpack(load_pack<T, kEach>(from + p.partner));
    const Floats<kEach> cosine = unpack(load_pack<float, kEach>(cosines + p.angle));
    const Floats<kEach> sine = unpack(load_pack<float, kEach>(sines + p.angle));
#pragma unroll
    for (int c = 0; c < kEach; ++c) f.v[c] = f.v[c] * cosine.v[c] + p.sign * partner.v[c] * sine.v[c];
    return cuda::pack<T>(f);
  }
};

void run(const RopeFp8& a, const ExecContext& ctx) {
  constexpr std::string_view op = "rope_fp8";
  check(a);
  const std::int64_t rows = a.x.dim(0), half = a.inv_freq.numel(), angles = rows * half;
  RING_CHECK(angles < std::int64_t{1} << 31, op, ": ", rows, " rows with ", half,
             " angles, but at most 2^31 - 1 angles are supported");
  const Tensor table = ctx.empty({2, rows, half});
  float *cosines = table.data<float>(), *sines = cosines + angles;
  launch(ctx, {grid_of(divide_up(angles, kBlock))}, rotation_table, a.positions.data<std::int32_t>(),
         a.inv_freq.data<float>(), a.inverse ? -1.0f : 1.0f, angles, Divider(static_cast<std::uint32_t>(half)), cosines,
         sines);
  visit_float(op, a.x.dtype(), [&]<class T>() {
    const bool packed = made_of_packs(device_rows<T>(op, "x", a.x)) && half % kEach == 0;
    launch_quantize<Operand::gradient>(
        ctx, Rotated<T>{device_data<T>(a.x), a.x.stride(0), a.heads * 2 * half, static_cast<int>(half), cosines, sines},
        quantize_params(a, rows, a.x.dim(1), packed));
  });
}

// Refuses tensorwise quantization: it would compute the table of angles, and would compute all rotations twice, which
// takes longer than two separate kernels.
bool supports(const RopeFp8& a, const ExecContext&) { return !is_tensorwise(a.out, a.transposed, a.max); }

const bool added_rope_fp8[] = {
    rope_fp8_kernel.add(Backend::cuda, {"tiles", run, supports, 10}),
    rope_fp8_kernel.add(Backend::cuda, {"separate", run_separately}),
};

}  // namespace
}  // namespace ring::cuda
