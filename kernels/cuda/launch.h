#pragma once
// Typed kernel launches, common grid shapes, and device views of tensors.

#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>

#include "core/cuda/check.h"
#include "core/step_state.h"
#include "kernels/cuda/device/reduce.cuh"
#include "kernels/cuda/device/rows.cuh"
#include "kernels/cuda/device/vec.cuh"
#include "kernels/rows.h"

namespace ring::cuda {

inline constexpr int kBlock = 256, kWarps = kBlock / kWarp;  // threads and warps per thread block
inline constexpr std::int64_t kMaxGridY = 65535;
// Maximum shared memory that needs no attribute; launch() sets the attribute for larger sizes.
inline constexpr std::size_t kFreeSharedBytes = 48 << 10;

struct Launch {
  dim3 grid{0, 0, 0}, block = kBlock;
  std::size_t shared_bytes = 0;
};

// Launches kernel(args...) on the context's stream, converting the arguments to the kernel's parameters. Does nothing
// if the grid is empty.
template <class... Params, class... Args>
void launch(const ExecContext& ctx, const Launch& shape, void (*kernel)(Params...), Args&&... args) {
  if (shape.grid.x == 0 || shape.grid.y == 0) return;
  RING_CUDA_CHECK(cudaSetDevice(ctx.stream.device().index));
  if (shape.shared_bytes > kFreeSharedBytes)
    RING_CUDA_CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                         static_cast<int>(shape.shared_bytes)));
  cudaLaunchConfig_t config{};
  config.gridDim = shape.grid;
  config.blockDim = shape.block;
  config.dynamicSmemBytes = shape.shared_bytes;
  config.stream = static_cast<cudaStream_t>(ctx.stream.native());
  RING_CUDA_CHECK(cudaLaunchKernelEx(&config, kernel, static_cast<Params>(args)...));
}

constexpr std::int64_t divide_up(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }
// Returns a grid of x * y thread blocks. Throws Error if CUDA does not support a grid of this size.
inline dim3 grid_of(std::int64_t x, std::int64_t y = 1) {
  RING_CHECK(x >= 0 && x <= INT32_MAX && y >= 0 && y <= kMaxGridY, "a grid of ", x, " x ", y,
             " thread blocks: CUDA supports ", INT32_MAX, " x ", kMaxGridY);
  return {static_cast<unsigned>(x), static_cast<unsigned>(y)};
}

// Returns an attribute of the context's device.
inline int device_attribute(const ExecContext& ctx, cudaDeviceAttr which) {
  int value = 0;
  RING_CUDA_CHECK(cudaDeviceGetAttribute(&value, which, ctx.stream.device().index));
  return value;
}

// Returns how many thread blocks fill the device once, for loops whose results do not depend on the grid.
inline std::int64_t resident_blocks(const ExecContext& ctx) {
  return device_attribute(ctx, cudaDevAttrMultiProcessorCount) * std::int64_t{2048 / kBlock};
}

// Grid for a loop over n elements, `per_thread` at a time.
inline Launch elements(const ExecContext& ctx, std::int64_t n, int per_thread = 4) {
  return {grid_of(std::min(divide_up(n, std::int64_t{per_thread} * kBlock), resident_blocks(ctx)))};
}

// Grid for a loop over rows (y) and `width` items of each (x); short rows share a thread block.
inline Launch rows_by(std::int64_t rows, std::int64_t width) {
  if (width == 0) return {};
  unsigned x = kWarp, y = kBlock / kWarp;
  for (; x < width && x < kBlock; x *= 2) y /= 2;
  return {grid_of(divide_up(width, x), std::min(divide_up(rows, y), kMaxGridY)), {x, y}};
}

// Calls f(plan) with the first of `Plans` that can hold a row of `row_packs` packs. A plan has `group` threads per row
// with `packs` packs each. Returns false if no plan can.
template <class... Plans, class F>
bool with_plan(std::int64_t row_packs, const F& f) {
  return ((row_packs <= Plans::group * Plans::packs && (f(Plans{}), true)) || ...);
}

// Calls f<T>() with the type that device code uses for elements of `dtype`: float or __nv_bfloat16.
//   visit_float("rope", x.dtype(), [&]<class T>() { launch(ctx, shape, rope<T>, device_data<T>(x)); });
template <class F>
void visit_float(std::string_view op, DType dtype, const F& f) {
  switch (dtype) {
    case DType::f32: return f.template operator()<float>();
    case DType::bf16: return f.template operator()<__nv_bfloat16>();
    default: fail(op, ": expected tensors of f32 or bf16, got ", dtype);
  }
}

template <class T>
struct HostType {
  using type = T;
};
template <>
struct HostType<__nv_bfloat16> {
  using type = bf16;
};

// Throw Error if the element type differs. device_data returns null if the tensor is undefined.
template <class T>
T* device_data(const Tensor& t) {
  return t.defined() ? reinterpret_cast<T*>(t.data<typename HostType<T>::type>()) : nullptr;
}
template <class T>
RowsOf<T> device_rows(std::string_view op, std::string_view name, const Tensor& t) {
  const auto r = rows_of<typename HostType<T>::type>(op, name, t);
  return {reinterpret_cast<T*>(r.data), r.count, r.width, r.inner, r.outer_stride, r.inner_stride};
}

// Returns the rows of one of several tensors of equal shape. `inner` is the largest inner count among the tensors, so
// that a single division finds a row in every tensor.
template <class T>
StridedRows<T> strided_rows(const RowsOf<T>& r, std::int64_t inner) {
  if (r.inner == inner) return {r.data, r.outer_stride, r.inner_stride};
  return {r.data, r.outer_stride * inner, r.outer_stride};
}
// Returns the step's state in device memory; null if the tensor is undefined.
inline StepState* device_state(std::string_view op, const Tensor& state) {
  return state.defined() ? &state_of(op, state) : nullptr;
}

// Returns true if every row consists of whole packs of 16 aligned bytes.
template <class T>
bool made_of_packs(const RowsOf<T>& r) {
  constexpr std::int64_t pack = 16 / sizeof(T);
  return is_aligned(r.data) && r.width % pack == 0 && r.outer_stride % pack == 0 &&
         (r.inner == 1 || r.inner_stride % pack == 0);
}
// Returns a divider by `inner` for row numbers. Throws Error unless there are fewer than 2^31 rows.
inline Divider divider_of(std::string_view op, std::int64_t rows, std::int64_t inner) {
  RING_CHECK(rows < std::int64_t{1} << 31, op, " of ", rows, " rows, but at most 2^31 - 1 are supported");
  return Divider(static_cast<std::uint32_t>(inner));
}

}  // namespace ring::cuda
