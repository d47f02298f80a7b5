#include "kernels/cuda/quantize_fp8.cuh"
#include "kernels/cuda/swiglu.cuh"
#include "kernels/fp8_producers.h"

namespace ring::cuda {
namespace {

// Gate and up in f32, of one element and of kEach neighbouring elements.
struct GateAndUp {
  float gate, up;
};
struct GateAndUpPack {
  Floats<kEach> gate, up;
};

// gate_up as a tensor in memory.
template <class T>
struct GateUpRows {
  using Type = T;
  const T* gate_up;
  std::int64_t stride, width;

  __device__ GateAndUp at(std::int64_t row, std::int64_t column) const {
    const T* gate = gate_up + row * stride + column;
    return {to_float(gate[0]), to_float(gate[width])};
  }
  __device__ GateAndUpPack pack(std::int64_t row, std::int64_t column) const {
    const T* from = gate_up + row * stride + column;
    return {unpack(load_pack<T, kEach>(from)), unpack(load_pack<T, kEach>(from + width))};
  }
};

// gate_up in FP8, with one scale for each block of columns in a row. Elements are rounded to T.
template <class T>
struct GateUpCodes {
  using Type = T;
  Fp8Rows gate_up;
  std::int64_t width;

  __device__ GateAndUp at(std::int64_t row, std::int64_t column) const {
    return {element(row, column), element(row, column + width)};
  }
  __device__ GateAndUpPack pack(std::int64_t row, std::int64_t column) const {
    return {elements(row, column), elements(row, column + width)};
  }

 private:
  __device__ float scale(std::int64_t row, std::int64_t column) const {
    return gate_up.scales[column / kSide * gate_up.scale_stride + row];
  }
  __device__ float element(std::int64_t row, std::int64_t column) const {
    const float value = unpack_e4m3(gate_up.values[row * gate_up.value_stride + column]).x;
    return to_float(from_float<T>(value * scale(row, column)));
  }
  __device__ Floats<kEach> elements(std::int64_t row, std::int64_t column) const {
    const uint2 codes = *reinterpret_cast<const uint2*>(gate_up.values + row * gate_up.value_stride + column);
    return unpack(cuda::pack<T>(unpack_codes(codes, scale(row, column))));
  }
};

template <class GateUp>
struct Gated {
  using Type = typename GateUp::Type;
  GateUp in;

  __device__ Type at(std::int64_t row, std::int64_t column) const {
    const GateAndUp x = in.at(row, column);
    return from_float<Type>(swiglu_of(x.gate, x.up));
  }
  __device__ Pack<Type, kEach> pack(std::int64_t row, std::int64_t column) const {
    GateAndUpPack x = in.pack(row, column);
#pragma unroll
    for (int c = 0; c < kEach; ++c) x.gate.v[c] = swiglu_of(x.gate.v[c], x.up.v[c]);
    return cuda::pack<Type>(x.gate);
  }
};

// Gradients of gate and up, side by side, as a source. With one scale per row, the two tiles that read the same
// elements are computed by different thread blocks. They run concurrently, so the second one reads from the cache.
// Tensorwise, one thread block computes both tiles.
template <class GateUp>
struct GatedGradient {
  using Type = typename GateUp::Type;
  static constexpr int kParts = 2;
  GateUp in;
  const Type* dy;
  std::int64_t dy_stride;

  __device__ Type at(std::int64_t row, std::int64_t column) const {
    const bool of_up = column >= in.width;
    const std::int64_t c = of_up ? column - in.width : column;
    const GateAndUp x = in.at(row, c);
    const SwiGluGradients g = swiglu_gradients(x.gate, x.up, to_float(dy[row * dy_stride + c]));
    return from_float<Type>(of_up ? g.up : g.gate);
  }
  __device__ Pack<Type, kEach> pack(std::int64_t row, std::int64_t column) const {
    Pack<Type, kEach> both[2];
    packs(row, column >= in.width ? column - in.width : column, both);
    return column >= in.width ? both[1] : both[0];
  }
  __device__ void packs(std::int64_t row, std::int64_t column, Pack<Type, kEach> (&to)[2]) const {
    GateAndUpPack x = in.pack(row, column);
    const Floats<kEach> d = unpack(load_pack<Type, kEach>(dy + row * dy_stride + column));
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      const SwiGluGradients g = swiglu_gradients(x.gate.v[i], x.up.v[i], d.v[i]);
      x.gate.v[i] = g.gate, x.up.v[i] = g.up;
    }
    to[0] = cuda::pack<Type>(x.gate), to[1] = cuda::pack<Type>(x.up);
  }
};

// Calls launch(gate_up, packed) with the op's gate_up as GateUpRows or GateUpCodes. packed: see QuantizeParams.
template <class T, class Args, class Launch>
void with_gate_up(std::string_view op, const Args& a, const Launch& launch) {
  if (a.fp8_gate_up.defined())
    return launch(GateUpCodes<T>{Fp8Rows(a.fp8_gate_up), a.fp8_gate_up.values.dim(1) / 2}, true);
  const std::int64_t width = a.gate_up.dim(1) / 2;
  launch(GateUpRows<T>{device_data<T>(a.gate_up), a.gate_up.stride(0), width},
         made_of_packs(device_rows<T>(op, "gate_up", a.gate_up)) && width % kEach == 0);
}

void run_swiglu(const SwiGluFp8& a, const ExecContext& ctx) {
  constexpr std::string_view op = "swiglu_fp8";
  check(a);
  visit_float(op, a.gate_up.defined() ? a.gate_up.dtype() : a.dtype, [&]<class T>() {
    with_gate_up<T>(op, a, [&]<class GateUp>(const GateUp& in, bool packed) {
      const std::int64_t rows = (a.gate_up.defined() ? a.gate_up : a.fp8_gate_up.values).dim(0);
      launch_quantize<Operand::input>(ctx, Gated<GateUp>{in}, quantize_params(a, rows, in.width, packed));
    });
  });
}

void run_swiglu_backward(const SwiGluBackwardFp8& a, const ExecContext& ctx) {
  constexpr std::string_view op = "swiglu_backward_fp8";
  check(a);
  visit_float(op, a.dy.dtype(), [&]<class T>() {
    with_gate_up<T>(op, a, [&]<class GateUp>(const GateUp& in, bool packed) {
      const bool all_packed = packed && made_of_packs(device_rows<T>(op, "dy", a.dy));
      launch_quantize<Operand::gradient>(ctx, GatedGradient<GateUp>{in, device_data<T>(a.dy), a.dy.stride(0)},
                                         quantize_params(a, a.dy.dim(0), 2 * in.width, all_packed));
    });
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
