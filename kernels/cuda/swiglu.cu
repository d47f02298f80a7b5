#include "kernels/activation.h"
#include "kernels/cuda/device/vec.cuh"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/swiglu.cuh"

namespace ring::cuda {
namespace {

constexpr int kSwiGluUnroll = 2;  // packs per thread

// The packs of all rows are numbered consecutively, so that short and odd widths leave no thread idle.
template <class T>
struct SwiGluRows {
  StridedRows<T> gate_up, dy, out;  // dy: only for the backward
  Divider inner, row_packs;
  std::uint32_t first_row, packs;  // first_row: rows before this launch; packs: packs in this launch
  int width;
};

template <int size, class T>
struct PackCoord {
  bool inside;
  std::uint32_t outer, inner;
  int column;

  __device__ PackCoord(const SwiGluRows<T>& a, int u) {
    const std::uint32_t at = (blockIdx.x * kSwiGluUnroll + u) * kBlock + threadIdx.x, row = a.row_packs.quotient(at);
    inside = at < a.packs;
    column = static_cast<int>(at - row * a.row_packs.divisor) * size;
    outer = a.inner.quotient(a.first_row + row);
    inner = a.first_row + row - outer * a.inner.divisor;
  }
  __device__ T* in(const StridedRows<T>& rows) const { return rows.at(outer, inner) + column; }
};

template <Gate kind, int size, class T>
__global__ void __launch_bounds__(kBlock) swiglu(SwiGluRows<T> a) {
  Pack<T, size> gate[kSwiGluUnroll] = {}, up[kSwiGluUnroll] = {};
#pragma unroll
  for (int u = 0; u < kSwiGluUnroll; ++u) {
    const PackCoord<size, T> place(a, u);
    if (!place.inside) continue;
    gate[u] = load_pack<T, size>(place.in(a.gate_up));
    up[u] = load_pack<T, size>(place.in(a.gate_up) + a.width);
  }
#pragma unroll
  for (int u = 0; u < kSwiGluUnroll; ++u) {
    Floats<size> g = unpack(gate[u]);
    const Floats<size> v = unpack(up[u]);
#pragma unroll
    for (int j = 0; j < size; ++j) g.v[j] = gated<kind>(g.v[j], v.v[j]);
    const PackCoord<size, T> place(a, u);
    if (place.inside) store_pack(place.in(a.out), pack<T>(g));
  }
}

template <Gate kind, int size, class T>
__global__ void __launch_bounds__(kBlock) swiglu_backward(SwiGluRows<T> a) {
  Pack<T, size> gate[kSwiGluUnroll] = {}, up[kSwiGluUnroll] = {}, dy[kSwiGluUnroll] = {};
#pragma unroll
  for (int u = 0; u < kSwiGluUnroll; ++u) {
    const PackCoord<size, T> place(a, u);
    if (!place.inside) continue;
    gate[u] = load_pack<T, size>(place.in(a.gate_up));
    up[u] = load_pack<T, size>(place.in(a.gate_up) + a.width);
    dy[u] = load_pack<T, size>(place.in(a.dy));
  }
#pragma unroll
  for (int u = 0; u < kSwiGluUnroll; ++u) {
    Floats<size> g = unpack(gate[u]), v = unpack(up[u]);
    const Floats<size> d = unpack(dy[u]);
#pragma unroll
    for (int j = 0; j < size; ++j) {
      const SwiGluGradients x = gated_gradients<kind>(g.v[j], v.v[j], d.v[j]);
      g.v[j] = x.gate, v.v[j] = x.up;
    }
    const PackCoord<size, T> place(a, u);
    if (!place.inside) continue;
    store_pack(place.in(a.out), pack<T>(g));
    store_pack(place.in(a.out) + a.width, pack<T>(v));
  }
}

// Splits the rows into launches of fewer than 2^31 packs each.
template <class T>
void launch_rows(const ExecContext& ctx, SwiGluRows<T> a, int size, std::int64_t rows, void (*kernel)(SwiGluRows<T>)) {
  const std::int64_t row_packs = a.width / size, tile = kSwiGluUnroll * kBlock;
  if (row_packs == 0) return;
  a.row_packs = divider_of("swiglu", row_packs, row_packs);
  const std::int64_t max_rows = ((std::int64_t{1} << 31) - tile) / row_packs;
  for (std::int64_t first = 0; first < rows; first += max_rows) {
    a.first_row = static_cast<std::uint32_t>(first);
    a.packs = static_cast<std::uint32_t>(std::min(max_rows, rows - first) * row_packs);
    launch(ctx, {grid_of(divide_up(a.packs, tile))}, kernel, a);
  }
}

template <Gate kind, class T>
void forward(const SwiGlu& args, const ExecContext& ctx) {
  const RowsOf<T> in = device_rows<T>("swiglu", "gate_up", args.gate_up), out = device_rows<T>("swiglu", "y", args.y);
  RING_CHECK(in.count == out.count && in.width == 2 * out.width, "swiglu of ", describe(args.gate_up), " into ",
             describe(args.y));
  const std::int64_t inner = std::max(in.inner, out.inner);
  SwiGluRows<T> a{};
  a.gate_up = strided_rows(in, inner);
  a.out = strided_rows(out, inner);
  a.inner = divider_of("swiglu", in.count, inner);
  a.width = static_cast<int>(out.width);
  if (made_of_packs(in) && made_of_packs(out))
    launch_rows<T>(ctx, a, kPack<T>, in.count, swiglu<kind, kPack<T>, T>);
  else
    launch_rows<T>(ctx, a, 1, in.count, swiglu<kind, 1, T>);
}

template <Gate kind, class T>
void backward(const SwiGluBackward& args, const ExecContext& ctx) {
  const char* op = "swiglu_backward";
  const RowsOf<T> in = device_rows<T>(op, "gate_up", args.gate_up), dy = device_rows<T>(op, "dy", args.dy);
  const RowsOf<T> out = device_rows<T>(op, "dgate_up", args.dgate_up);
  check_shape(op, "dgate_up", args.dgate_up, args.gate_up.shape());
  RING_CHECK(in.count == dy.count && in.width == 2 * dy.width, op, " of ", describe(args.gate_up), " with dy ",
             describe(args.dy));
  const std::int64_t inner = std::max({in.inner, dy.inner, out.inner});
  SwiGluRows<T> a{};
  a.gate_up = strided_rows(in, inner);
  a.dy = strided_rows(dy, inner);
  a.out = strided_rows(out, inner);
  a.inner = divider_of(op, in.count, inner);
  a.width = static_cast<int>(dy.width);
  if (made_of_packs(in) && made_of_packs(dy) && made_of_packs(out))
    launch_rows<T>(ctx, a, kPack<T>, in.count, swiglu_backward<kind, kPack<T>, T>);
  else
    launch_rows<T>(ctx, a, 1, in.count, swiglu_backward<kind, 1, T>);
}

void run_swiglu(const SwiGlu& args, const ExecContext& ctx) {
  visit_float("swiglu", args.y.dtype(), [&]<class T>() {
    (args.gate == Gate::silu ? forward<Gate::silu, T> : forward<Gate::gelu_tanh, T>)(args, ctx);
  });
}
void run_swiglu_backward(const SwiGluBackward& args, const ExecContext& ctx) {
  visit_float("swiglu_backward", args.dy.dtype(), [&]<class T>() {
    (args.gate == Gate::silu ? backward<Gate::silu, T> : backward<Gate::gelu_tanh, T>)(args, ctx);
  });
}

const bool added_swiglu[] = {
    swiglu_kernel.add(Backend::cuda, {"packs", run_swiglu}),
    swiglu_backward_kernel.add(Backend::cuda, {"packs", run_swiglu_backward}),
};

}  // namespace
}  // namespace ring::cuda
