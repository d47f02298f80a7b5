#include "kernels/cuda/norm_backward.cuh"
#include "kernels/cuda/norm_forward.cuh"
#include "kernels/norm.h"

namespace ring::cuda {
namespace {

template <class T>
void forward(const LayerNorm& args, const ExecContext& ctx) {
  const char* op = "layer_norm";
  const RowsOf<T> x = device_rows<T>(op, "x", args.x), y = device_rows<T>(op, "y", args.y);
  check_shape(op, "y", args.y, args.x.shape());
  check_numel(op, "w", args.w, x.width);
  if (args.b.defined()) check_numel(op, "b", args.b, x.width);
  check_numel(op, "mean", args.mean, x.count);
  check_numel(op, "rstd", args.rstd, x.count);
  const std::int64_t inner = std::max(x.inner, y.inner);
  NormForward<T> a{};
  a.x = strided_rows(x, inner);
  a.y = strided_rows(y, inner);
  a.inner = divider_of(op, x.count, inner);
  a.count = static_cast<std::uint32_t>(x.count);
  a.width = static_cast<int>(x.width);
  a.w = device_data<T>(args.w);
  a.b = device_data<T>(args.b);
  a.mean = args.mean.data<float>();
  a.rstd = args.rstd.data<float>();
  a.eps = args.eps;
  launch_norm<true>(a, made_of_packs(x) && made_of_packs(y) && is_aligned(a.w) && is_aligned(a.b), ctx);
}

void check_backward(const LayerNormBackward& args, std::int64_t rows, std::int64_t width) {
  const char* op = "layer_norm_backward";
  check_shape(op, "dy", args.dy, args.x.shape());
  if (args.dx.defined()) check_shape(op, "dx", args.dx, args.x.shape());
  if (args.dw.defined()) check_numel(op, "dw", args.dw, width);
  if (args.db.defined()) check_numel(op, "db", args.db, width);
  check_numel(op, "w", args.w, width);
  check_numel(op, "mean", args.mean, rows);
  check_numel(op, "rstd", args.rstd, rows);
}

template <class T>
void backward(const LayerNormBackward& args, const ExecContext& ctx) {
  const char* op = "layer_norm_backward";
  const RowsOf<T> x = device_rows<T>(op, "x", args.x), dy = device_rows<T>(op, "dy", args.dy);
  const RowsOf<T> dx = args.dx.defined() ? device_rows<T>(op, "dx", args.dx) : x;
  check_backward(args, x.count, x.width);
  const std::int64_t inner = std::max({x.inner, dy.inner, dx.inner});
  NormBackward<T> a{};
  a.x = strided_rows(x, inner);
  a.dy = strided_rows(dy, inner);
  if (args.dx.defined()) a.dx = strided_rows(dx, inner);
  a.inner = divider_of(op, x.count, inner);
  a.count = static_cast<std::uint32_t>(x.count);
  a.width = static_cast<int>(x.width);
  a.w = device_data<T>(args.w);
  a.mean = args.mean.data<float>();
  a.rstd = args.rstd.data<float>();
  a.beta_x = args.beta_x;
  const bool whole_packs = made_of_packs(x) && made_of_packs(dy) && made_of_packs(dx) && is_aligned(a.w);
  launch_norm_backward<true>(a, whole_packs,
                             {.dw = args.dw, .db = args.db, .beta_w = args.beta_w, .beta_b = args.beta_b}, ctx);
}

void run_forward(const LayerNorm& args, const ExecContext& ctx) {
  visit_float("layer_norm", args.x.dtype(), [&]<class T>() { forward<T>(args, ctx); });
}
void run_backward(const LayerNormBackward& args, const ExecContext& ctx) {
  visit_float("layer_norm_backward", args.x.dtype(), [&]<class T>() { backward<T>(args, ctx); });
}

const bool added_layer_norm[] = {
    layer_norm_kernel.add(Backend::cuda, {"rows", run_forward}),
    layer_norm_backward_kernel.add(Backend::cuda, {"two_stage", run_backward}),
};

}  // namespace
}  // namespace ring::cuda
