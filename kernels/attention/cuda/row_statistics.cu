#include "kernels/attention/cuda/dropout.cuh"
#include "kernels/cuda/device/rows.cuh"
#include "kernels/cuda/device/vec.cuh"

namespace ring::cuda {
namespace {

constexpr int kPerLane = 8;  // elements per lane: head dims are multiples of 8
constexpr int kTokens = 32;  // tokens of one head processed as consecutive rows, because results are stored by head

template <class T>
__device__ float dot8(const T* a, const T* b, bool aligned) {
  float sum = 0;
  if (aligned) {
    const Floats<kPerLane> x = unpack(load_pack<T, kPerLane>(a)), y = unpack(load_pack<T, kPerLane>(b));
#pragma unroll
    for (int i = 0; i < kPerLane; ++i) sum += x.v[i] * y.v[i];
  } else {
#pragma unroll
    for (int i = 0; i < kPerLane; ++i) sum += to_float(a[i]) * to_float(b[i]);
  }
  return sum;
}

struct Rows8 {
  std::int64_t tokens;
  std::uint32_t rows;  // heads * tokens, rounded up to multiples of kTokens
  Divider heads;
  int dim, lanes;  // lanes: lanes per row, a power of two
  float kept;      // delta is multiplied by it: 1 - dropout rate
  bool aligned;
};

// Computes lse2 and delta of each row. Neighbouring lanes share a row.
template <class T>
__global__ void statistics_of_rows(HeadsOf<const T> out, HeadsOf<const T> dout, const float* lse, Rows8 r, float* lse2,
                                   float* delta) {
  const std::uint32_t index = blockIdx.x * (kBlock / r.lanes) + threadIdx.x / r.lanes, in_row = threadIdx.x % r.lanes;
  const std::uint32_t group = index / kTokens, first = r.heads.quotient(group), h = group - first * r.heads.divisor;
  const std::uint32_t n = first * kTokens + index % kTokens;
  const bool exists = index < r.rows && n < r.tokens;
  float sum = 0;
  if (exists && static_cast<int>(in_row) * kPerLane < r.dim)
    sum = dot8(out.at(n, static_cast<int>(h)) + in_row * kPerLane, dout.at(n, static_cast<int>(h)) + in_row * kPerLane,
               r.aligned);
  for (int distance = r.lanes / 2; distance > 0; distance /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, distance);
  if (in_row != 0 || !exists) return;
  const std::int64_t at = h * r.tokens + n;
  const float l = lse[at];
  lse2[at] = l == -INFINITY ? INFINITY : l * kLog2E;
  delta[at] = sum * r.kept;
}

template <class T>
void run(const AttentionBackward& a, const RowStatistics& to, const ExecContext& ctx) {
  Rows8 r{};
  r.tokens = a.q.dim(0);
  r.dim = static_cast<int>(a.q.dim(2));
  r.lanes = 1;
  r.kept = 1 - a.dropout.rate;
  r.aligned = true;
  const std::int64_t rows = divide_up(r.tokens, kTokens) * kTokens * a.q.dim(1);
  r.heads = divider_of("attention_backward", rows, a.q.dim(1));
  r.rows = static_cast<std::uint32_t>(rows);
  while (r.lanes * kPerLane < r.dim) r.lanes *= 2;
  for (const Tensor* t : {&a.out, &a.dout})
    for (std::int64_t stride : {t->stride(0), t->stride(1)})
      r.aligned &= is_aligned(t->raw()) && stride * static_cast<std::int64_t>(sizeof(T)) % 16 == 0;
  launch(ctx, {grid_of(divide_up(rows * r.lanes, kBlock))}, statistics_of_rows<T>, heads_of<const T>(a.out),
         heads_of<const T>(a.dout), a.lse.data<float>(), r, to.lse2.data<float>(), to.delta.data<float>());
}

}  // namespace

RowStatistics row_statistics(const AttentionBackward& args, const ExecContext& ctx) {
  const RowStatistics to{ctx.empty(args.lse.shape()), ctx.empty(args.lse.shape()),
                         dropout_keys(args.dropout, args.lse, ctx)};
  visit_float("attention_backward", args.q.dtype(), [&]<class T>() { run<T>(args, to, ctx); });
  return to;
}

}  // namespace ring::cuda
