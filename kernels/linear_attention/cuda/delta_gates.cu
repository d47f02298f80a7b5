#include "kernels/cuda/launch.h"
#include "kernels/linear_attention/gated_delta.h"
#include "kernels/matmul.h"

namespace ring::cuda {
namespace {

__device__ inline float softplus_of(float x) { return x > 20 ? x : log1pf(expf(x)); }
__device__ inline float logistic(float x) { return 1.0f / (1.0f + expf(-x)); }

// Rows of `ab` and of gates, both [N,2H] with row strides.
template <class T>
struct GateRows {
  const T* ab;
  std::int64_t ab_stride;
  const T *log_decay, *dt_bias;  // [H]
  int heads;
  std::int64_t rows;
  float max_beta;
};

template <class T>
__global__ void __launch_bounds__(kBlock) delta_gates(GateRows<T> a, float* gates, std::int64_t stride) {
  for (std::int64_t i = thread_x(); i < a.rows * a.heads; i += threads_x()) {
    const std::int64_t row = i / a.heads;
    const int h = static_cast<int>(i - row * a.heads);
    const T* ab = a.ab + row * a.ab_stride;
    gates[row * stride + h] = -expf(to_float(a.log_decay[h])) * softplus_of(to_float(ab[h]) + to_float(a.dt_bias[h]));
    gates[row * stride + a.heads + h] = a.max_beta * logistic(to_float(ab[a.heads + h]));
  }
}

// Thread x is a head, and thread y takes every threads_y()-th row. Each thread row writes one row of `parts` [.,2H]:
// its sums of the gradients of log_decay and dt_bias. dab: null if not wanted.
template <class T>
__global__ void __launch_bounds__(kBlock)
    delta_gates_gradients(GateRows<T> a, const float* dgates, std::int64_t stride, T* dab, std::int64_t dab_stride,
                          float factor, float* parts) {
  const std::int64_t h = thread_x();
  if (h >= a.heads) return;
  const float rate = -expf(to_float(a.log_decay[h])), bias = to_float(a.dt_bias[h]);
  const auto store = [factor](T& to, float value) {
    to = from_float<T>(factor == 0 ? value : factor * to_float(to) + value);
  };
  float of_decay = 0, of_bias = 0;
  for (std::int64_t row = thread_y(); row < a.rows; row += threads_y()) {
    const float x = to_float(a.ab[row * a.ab_stride + h]) + bias, dg = dgates[row * stride + h] * rate;
    const float s = logistic(to_float(a.ab[row * a.ab_stride + a.heads + h])), da = dg * logistic(x);
    of_decay += dg * softplus_of(x);
    of_bias += da;
    if (!dab) continue;
    store(dab[row * dab_stride + h], da);
    store(dab[row * dab_stride + a.heads + h], dgates[row * stride + a.heads + h] * a.max_beta * s * (1 - s));
  }
  parts[thread_y() * 2 * a.heads + h] = of_decay;
  parts[thread_y() * 2 * a.heads + a.heads + h] = of_bias;
}

template <class T, class Args>
GateRows<T> gate_rows(const char* op, const Args& a, const Tensor& gates) {
  const std::int64_t heads = a.log_decay.numel();
  check_shape(op, "ab", a.ab, {a.ab.dim(0), 2 * heads});
  check_numel(op, "log_decay", a.log_decay, heads);
  check_numel(op, "dt_bias", a.dt_bias, heads);
  check_shape(op, "gates", gates, a.ab.shape());
  const RowsOf<T> ab = device_rows<T>(op, "ab", a.ab);
  return {ab.data,  ab.outer_stride, device_data<T>(a.log_decay), device_data<T>(a.dt_bias), static_cast<int>(heads),
          ab.count, a.max_beta};
}

void run_delta_gates(const DeltaGates& args, const ExecContext& ctx) {
  visit_float("delta_gates", args.ab.dtype(), [&]<class T>() {
    const GateRows<T> a = gate_rows<T>("delta_gates", args, args.gates);
    const RowsOf<float> gates = device_rows<float>("delta_gates", "gates", args.gates);
    launch(ctx, elements(ctx, a.rows * a.heads, 1), delta_gates<T>, a, gates.data, gates.outer_stride);
  });
}

void run_delta_gates_backward(const DeltaGatesBackward& args, const ExecContext& ctx) {
  constexpr const char* op = "delta_gates_backward";
  constexpr std::int64_t rows_per_thread = 16, max_parts = 2048;
  if (args.dab.defined()) check_shape(op, "dab", args.dab, args.ab.shape());
  visit_float(op, args.ab.dtype(), [&]<class T>() {
    const GateRows<T> a = gate_rows<T>(op, args, args.dgates);
    const RowsOf<float> dgates = device_rows<float>(op, "dgates", args.dgates);
    const RowsOf<T> dab = args.dab.defined() ? device_rows<T>(op, "dab", args.dab) : RowsOf<T>{};
    const Launch shape = rows_by(std::clamp(divide_up(a.rows, rows_per_thread), std::int64_t{1}, max_parts), a.heads);
    const Tensor parts = ctx.empty({std::int64_t{shape.grid.y} * shape.block.y, 2 * a.heads});
    launch(ctx, shape, delta_gates_gradients<T>, a, dgates.data, dgates.outer_stride, dab.data, dab.outer_stride,
           args.factor_ab, parts.data<float>());
    if (args.dlog_decay.defined())
      column_sum_kernel({parts.narrow(1, 0, a.heads), args.dlog_decay, args.factor_log_decay}, ctx);
    if (args.ddt_bias.defined())
      column_sum_kernel({parts.narrow(1, a.heads, a.heads), args.ddt_bias, args.factor_dt_bias}, ctx);
  });
}

const bool added_delta_gates[] = {delta_gates_kernel.add(Backend::cuda, {"rows", run_delta_gates}),
                                  delta_gates_backward_kernel.add(Backend::cuda, {"rows", run_delta_gates_backward})};

}  // namespace
}  // namespace ring::cuda
