#include "kernels/attention/sink.h"

#include "kernels/cuda/launch.h"

namespace ring::cuda {
namespace {

// In both kernels, a warp processes one head of one row: r = row * heads + head.
template <class T>
__global__ void __launch_bounds__(kBlock) add_sinks(RowsOf<T> out, float* lse, const T* sinks, std::int64_t heads) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const std::int64_t rows = out.count / heads, first = blockIdx.x * std::int64_t{kWarps} + threadIdx.x / kWarp;
  for (std::int64_t r = first; r < out.count; r += gridDim.x * std::int64_t{kWarps}) {
    const std::int64_t at = r % heads * rows + r / heads;
    const float sink = to_float(sinks[r % heads]), before = lse[at];
    const float factor = 1 / (1 + expf(sink - before));
    for (std::int64_t i = lane; i < out.width; i += kWarp) out[r][i] = from_float<T>(to_float(out[r][i]) * factor);
    __syncwarp();  // all lanes have read lse
    if (lane == 0) lse[at] = fmaxf(sink, before) + log1pf(expf(-fabsf(sink - before)));
  }
}

template <class T>
__global__ void __launch_bounds__(kBlock)
    sink_terms(RowsOf<T> out, RowsOf<T> dout, const float* lse, const T* sinks, float* terms, std::int64_t heads) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const std::int64_t rows = out.count / heads, first = blockIdx.x * std::int64_t{kWarps} + threadIdx.x / kWarp;
  for (std::int64_t r = first; r < out.count; r += gridDim.x * std::int64_t{kWarps}) {
    float sum = 0;
    for (std::int64_t i = lane; i < out.width; i += kWarp) sum += to_float(dout[r][i]) * to_float(out[r][i]);
    sum = warp_sum(sum);
    if (lane == 0) terms[r] = -expf(to_float(sinks[r % heads]) - lse[r % heads * rows + r / heads]) * sum;
  }
}

Launch warp_per_head(const Tensor& out, const ExecContext& ctx) {
  return {grid_of(std::min(divide_up(out.dim(0) * out.dim(1), std::int64_t{kWarps}), resident_blocks(ctx)))};
}

void run_attention_sink(const AttentionSink& a, const ExecContext& ctx) {
  check(a);
  constexpr const char* op = "attention_sink";
  visit_float(op, a.out.dtype(), [&]<class T>() {
    launch(ctx, warp_per_head(a.out, ctx), add_sinks<T>, device_rows<T>(op, "out", a.out), device_data<float>(a.lse),
           device_data<T>(a.sinks), a.out.dim(1));
  });
}

void run_attention_sink_backward(const AttentionSinkBackward& a, const ExecContext& ctx) {
  check(a);
  constexpr const char* op = "attention_sink_backward";
  visit_float(op, a.out.dtype(), [&]<class T>() {
    launch(ctx, warp_per_head(a.out, ctx), sink_terms<T>, device_rows<T>(op, "out", a.out),
           device_rows<T>(op, "dout", a.dout), device_data<float>(a.lse), device_data<T>(a.sinks),
           device_data<float>(a.terms), a.out.dim(1));
  });
}

const bool added_sink[] = {attention_sink_kernel.add(Backend::cuda, {"warps", run_attention_sink}),
                           attention_sink_backward_kernel.add(Backend::cuda, {"warps", run_attention_sink_backward})};

}  // namespace
}  // namespace ring::cuda
