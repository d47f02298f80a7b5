#pragma once
// Rows of a strided tensor and argument checks, shared by the kernels of all backends.

#include <string_view>

#include "core/host_device.h"
#include "core/step_state.h"
#include "kernels/kernel.h"

namespace ring {

// The rows of a [N,C] or [N,H,C] tensor with unit last stride, numbered 0 to N - 1 or N H - 1.
template <class T>
struct RowsOf {
  T* data;
  std::int64_t count, width;
  std::int64_t inner, outer_stride, inner_stride;
  RING_HOST_DEVICE T* operator[](std::int64_t r) const {
    if (inner == 1) return data + r * outer_stride;
    return data + r / inner * outer_stride + r % inner * inner_stride;
  }
};
using Rows = RowsOf<float>;

// Throws Error, naming `op` and `name`, if t is not [N,C] or [N,H,C] with unit last stride.
template <class T = float>
RowsOf<T> rows_of(std::string_view op, std::string_view name, const Tensor& t) {
  RING_CHECK(t.defined() && (t.shape().size() == 2 || t.shape().size() == 3), op, ": ", name, " is ", describe(t),
             ", expected two or three dims");
  RING_CHECK(t.dim(-1) <= 1 || t.stride(-1) == 1, op, ": the last dim of ", name, " ", describe(t), " has stride ",
             t.stride(-1));
  RowsOf<T> r{t.template data<T>(), t.dim(0), t.dim(-1), 1, t.stride(0), 0};
  if (t.shape().size() == 3) {
    r.count *= t.dim(1);
    r.inner = t.dim(1);
    r.inner_stride = t.stride(1);
    if (r.inner == 1 || r.outer_stride == r.inner * r.inner_stride) {  // one stride suffices for all rows
      r.outer_stride = r.inner == 1 ? r.outer_stride : r.inner_stride;
      r.inner = 1;
    }
  }
  return r;
}

inline void check_shape(std::string_view op, std::string_view name, const Tensor& t, const Shape& want) {
  RING_CHECK(t.defined() && t.shape() == want, op, ": ", name, " is ", describe(t), ", expected ", want);
}
inline void check_numel(std::string_view op, std::string_view name, const Tensor& t, std::int64_t want) {
  RING_CHECK(t.defined() && t.numel() == want && t.is_contiguous(), op, ": ", name, " is ", describe(t), ", expected ",
             want, " contiguous elements");
}

// Returns true if t has all rows [first, end), or if this range is empty.
inline bool has_rows(const Tensor& t, std::int64_t first, std::int64_t end) {
  return first >= end || (first >= 0 && end <= t.dim(0));
}

// Returns the elements per row if `numel` elements are divided into rows.numel() rows; 0 if `rows` is undefined or
// numel is 0. Throws Error, naming `op`, if they do not divide evenly or `rows` is not contiguous i32.
inline std::int64_t width_of_rows(std::string_view op, const Tensor& rows, std::int64_t numel) {
  if (!rows.defined() || numel == 0) return 0;
  RING_CHECK(rows.dtype() == DType::i32 && rows.is_contiguous() && rows.numel() > 0 && numel % rows.numel() == 0, op,
             ": rows are ", describe(rows), ", expected one i32 for each row of ", numel, " elements");
  return numel / rows.numel();
}

// Returns the StepState stored in a u8 tensor, which may be in device memory. Throws Error, naming `op`, if the tensor
// is too small.
inline StepState& state_of(std::string_view op, const Tensor& state) {
  RING_CHECK(state.defined() && state.dtype() == DType::u8 && state.bytes() >= sizeof(StepState), op, ": state is ",
             describe(state), ", expected ", sizeof(StepState), " bytes");
  return *reinterpret_cast<StepState*>(state.raw());
}

}  // namespace ring
