#include "kernels/cuda/norm_backward.cuh"
#include "kernels/cuda/norm_forward.cuh"
#include "kernels/norm.h"

namespace ring::cuda {
namespace {

template <class T>
void forward(const RmsNorm& args, const ExecContext& ctx) {
  const char* op = "rms_norm";
  const RowsOf<T> x = device_rows<T>(op, "x", args.x), y = device_rows<T>(op, "y", args.y);
  check_shape(op, "y", args.y, args.x.shape());
  check_numel(op, "w", args.w, x.width);
  check_numel(op, "rstd", args.rstd, x.count);
  const std::int64_t inner = std::max(x.inner, y.inner);
  NormForward<T> a{};
  a.x = strided_rows(x, inner);
  a.y = strided_rows(y, inner);
  a.inner = divider_of(op, x.count, inner);
  a.count = static_cast<std::uint32_t>(x.count);
  a.width = static_cast<int>(x.width);
  a.w = device_data<T>(args.w);
  a.rstd = args.rstd.data<float>();
  a.eps = args.eps;
  a.w_offset = args.w_offset;
  launch_norm<false>(a, made_of_packs(x) && made_of_packs(y) && is_aligned(a.w), ctx);
}

template <class T>
void backward(const RmsNormBackward& args, const ExecContext& ctx) {
  const char* op = "rms_norm_backward";
  const RowsOf<T> x = device_rows<T>(op, "x", args.x), dy = device_rows<T>(op, "dy", args.dy);
  const RowsOf<T> dx = args.dx.defined() ? device_rows<T>(op, "dx", args.dx) : x;
  check_shape(op, "dy", args.dy, args.x.shape());
  if (args.dx.defined()) check_shape(op, "dx", args.dx, args.x.shape());
  if (args.dw.defined()) check_numel(op, "dw", args.dw, x.width);
  check_numel(op, "w", args.w, x.width);
  check_numel(op, "rstd", args.rstd, x.count);
  const std::int64_t inner = std::max({x.inner, dy.inner, dx.inner});
  NormBackward<T> a{};
  a.x = strided_rows(x, inner);
  a.dy = strided_rows(dy, inner);
  if (args.dx.defined()) a.dx = strided_rows(dx, inner);
  a.inner = divider_of(op, x.count, inner);
  a.count = static_cast<std::uint32_t>(x.count);
  a.width = static_cast<int>(x.width);
  a.w = device_data<T>(args.w);
  a.rstd = args.rstd.data<float>();
  a.beta_x = args.beta_x;
  a.w_offset = args.w_offset;
  a.max = device_data<float>(args.max);
  const bool whole_packs = made_of_packs(x) && made_of_packs(dy) && made_of_packs(dx) && is_aligned(a.w);
  launch_norm_backward<false>(a, whole_packs, {.dw = args.dw, .beta_w = args.beta_w}, ctx);
}

void run_forward(const RmsNorm& args, const ExecContext& ctx) {
  visit_float("rms_norm", args.x.dtype(), [&]<class T>() { forward<T>(args, ctx); });
}
void run_backward(const RmsNormBackward& args, const ExecContext& ctx) {
  visit_float("rms_norm_backward", args.x.dtype(), [&]<class T>() { backward<T>(args, ctx); });
}

const bool added_rms_norm[] = {
    rms_norm_kernel.add(Backend::cuda, {"rows", run_forward}),
    rms_norm_backward_kernel.add(Backend::cuda, {"two_stage", run_backward}),
};

}  // namespace
}  // namespace ring::cuda
