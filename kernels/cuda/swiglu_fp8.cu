#include "kernels/cuda/device/swiglu.cuh"
#include "kernels/cuda/quantize_fp8.cuh"
#include "kernels/fp8_producers.h"

namespace ring::cuda {
namespace {

template <class T>
struct Gated {
  using Type = T;
  const T* gate_up;
  std::int64_t stride, width;

  __device__ T at(std::int64_t row, std::int64_t column) const {
    const T* gate = gate_up + row * stride + column;
    return from_float<T>(swiglu_of(to_float(gate[0]), to_float(gate[width])));
  }
  __device__ Pack<T, kEach> pack(std::int64_t row, std::int64_t column) const {
    const T* from = gate_up + row * stride + column;
    Floats<kEach> gate = unpack(load_pack<T, kEach>(from));
    const Floats<kEach> up = unpack(load_pack<T, kEach>(from + width));
#pragma unroll
    for (int c = 0; c < kEach; ++c) gate.v[c] = swiglu_of(gate.v[c], up.v[c]);
    return cuda::pack<T>(gate);
  }
};

// Gradients of gate and up, side by side, as a source. With a scale for each row, different thread blocks compute the
// two tiles that read the same elements. They run concurrently, so the second one reads from the cache. Tensorwise, one
// thread block computes both tiles.
template <class T>
struct GatedGradient {
  using Type = T;
  static constexpr int kParts = 2;
  const T *gate_up, *dy;
  std::int64_t stride, dy_stride, width;

  __device__ T at(std::int64_t row, std::int64_t column) const {
    const bool of_up = column >= width;
    const std::int64_t c = of_up ? column - width : column;
    const T* gate = gate_up + row * stride + c;
    const SwiGluGradients g =
        swiglu_gradients(to_float(gate[0]), to_float(gate[width]), to_float(dy[row * dy_stride + c]));
    return from_float<T>(of_up ? g.up : g.gate);
  }
  __device__ Pack<T, kEach> pack(std::int64_t row, std::int64_t column) const {
    Pack<T, kEach> both[2];
    packs(row, column >= width ? column - width : column, both);
    return column >= width ? both[1] : both[0];
  }
  __device__ void packs(std::int64_t row, std::int64_t column, Pack<T, kEach> (&to)[2]) const {
    const T* from = gate_up + row * stride + column;
    Floats<kEach> gate = unpack(load_pack<T, kEach>(from)), up = unpack(load_pack<T, kEach>(from + width));
    const Floats<kEach> d = unpack(load_pack<T, kEach>(dy + row * dy_stride + column));
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      const SwiGluGradients g = swiglu_gradients(gate.v[i], up.v[i], d.v[i]);
      gate.v[i] = g.gate, up.v[i] = g.up;
    }
    to[0] = cuda::pack<T>(gate), to[1] = cuda::pack<T>(up);
  }
};

void run_swiglu(const SwiGluFp8& a, const ExecContext& ctx) {
  check(a);
  visit_float("swiglu_fp8", a.gate_up.dtype(), [&]<class T>() {
    const std::int64_t width = a.gate_up.dim(1) / 2;
    const bool packed = made_of_packs(device_rows<T>("swiglu_fp8", "gate_up", a.gate_up)) && width % kEach == 0;
    launch_quantize(ctx, Gated<T>{device_data<T>(a.gate_up), a.gate_up.stride(0), width},
                    quantize_params(a, a.gate_up.dim(0), width, packed));
  });
}

void run_swiglu_backward(const SwiGluBackwardFp8& a, const ExecContext& ctx) {
  constexpr std::string_view op = "swiglu_backward_fp8";
  check(a);
  visit_float(op, a.dy.dtype(), [&]<class T>() {
    const std::int64_t rows = a.dy.dim(0), width = a.dy.dim(1);
    const bool packed = made_of_packs(device_rows<T>(op, "gate_up", a.gate_up)) &&
                        made_of_packs(device_rows<T>(op, "dy", a.dy)) && width % kEach == 0;
    launch_quantize(
        ctx,
        GatedGradient<T>{device_data<T>(a.gate_up), device_data<T>(a.dy), a.gate_up.stride(0), a.dy.stride(0), width},
        quantize_params(a, rows, 2 * width, packed));
  });
}

const bool added_swiglu_fp8[] = {
    swiglu_fp8_kernel.add(Backend::cuda, {"tiles", run_swiglu, nullptr, 10}),
    swiglu_backward_fp8_kernel.add(Backend::cuda, {"tiles", run_swiglu_backward, nullptr, 10}),
    swiglu_fp8_kernel.add(Backend::cuda, {"separate", run_separately}),
    swiglu_backward_fp8_kernel.add(Backend::cuda, {"separate", run_separately}),
};

}  // namespace
}  // namespace ring::cuda
