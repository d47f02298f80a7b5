#include "kernels/attention/cudnn/parts.h"

#include "kernels/attention/cuda/tile_schedule.cuh"

namespace ring::cudnn {
namespace {

using cuda::HeadsOf;

__device__ std::int64_t row_of(const Rows& rows, std::int64_t n) {
  return rows.first + n / rows.count * rows.pitch + n % rows.count;
}

// One thread block copies a part of the log-sum-exps of one head and sequence.
__global__ void gather_statistics(const float* from, std::int64_t from_rows, float* to, Rows rows, std::int64_t heads) {
  for (std::int64_t i = blockIdx.y; i < rows.batch * heads; i += gridDim.y) {
    const std::int64_t b = i / heads, h = i % heads;
    const float* source = from + h * from_rows + rows.first + b * rows.pitch;
    for (std::int64_t t = cuda::thread_x(); t < rows.count; t += cuda::threads_x()) to[i * rows.count + t] = source[t];
  }
}

constexpr int kElements = 8;  // elements per thread

template <class T>
__device__ cuda::Floats<kElements> load(const T* p) {
  return cuda::unpack(cuda::load_pack<T, kElements>(p));
}

// Threads: x over the elements of a row, y over the rows of all heads.
template <class Out>
__global__ void merge_parts(HeadsOf<const __nv_bfloat16> part, const float* part_lse, Rows rows, int heads, int dim,
                            HeadsOf<const float> carry, HeadsOf<Out> out, float* lse, std::int64_t lse_rows) {
  const int at = threadIdx.x * kElements;
  const unsigned of_row = blockDim.x == cuda::kWarp ? ~0u : 0xffffu << (threadIdx.y % 2 * 16);  // lanes of the row
  const std::int64_t total = rows.batch * rows.count;
  for (std::int64_t i = cuda::thread_y(); i < total * heads; i += cuda::threads_y()) {
    const std::int64_t n = i / heads, row = row_of(rows, n);
    const int h = static_cast<int>(i % heads);
    float* const place = lse + h * lse_rows + row;
    const cuda::Merged m = cuda::merge(part_lse[h * total + n], carry.data ? *place : -INFINITY);
    __syncwarp(of_row);  // all lanes of the row have read the old lse
    if (at < dim) {
      cuda::Floats<kElements> x = load(part.at(n, h) + at);
#pragma unroll
      for (int j = 0; j < kElements; ++j) x.v[j] *= m.own;
      if (carry.data && m.before != 0) {
        const cuda::Floats<kElements> before = load(carry.at(row, h) + at);
#pragma unroll
        for (int j = 0; j < kElements; ++j) x.v[j] += m.before * before.v[j];
      }
      cuda::store_pack(out.at(row, h) + at, cuda::pack<Out>(x));
    }
    if (threadIdx.x == 0) *place = m.lse;
  }
}

template <class Out>
__global__ void add_parts(HeadsOf<const __nv_bfloat16> part, Rows rows, int heads, int dim, HeadsOf<const float> carry,
                          HeadsOf<Out> out) {
  const int at = threadIdx.x * kElements;
  if (at >= dim) return;
  const std::int64_t total = rows.batch * rows.count;
  for (std::int64_t i = cuda::thread_y(); i < total * heads; i += cuda::threads_y()) {
    const std::int64_t n = i / heads, row = row_of(rows, n);
    const int h = static_cast<int>(i % heads);
    cuda::Floats<kElements> x = load(part.at(n, h) + at);
    if (carry.data) {
      const cuda::Floats<kElements> before = load(carry.at(row, h) + at);
#pragma unroll
      for (int j = 0; j < kElements; ++j) x.v[j] += before.v[j];
    }
    cuda::store_pack(out.at(row, h) + at, cuda::pack<Out>(x));
  }
}

// One warp, or half a warp, per row of one head (head dims of at most 256).
cuda::Launch by_rows(std::int64_t rows, std::int64_t dim) {
  const unsigned x = dim > 16 * kElements ? cuda::kWarp : cuda::kWarp / 2, y = cuda::kBlock / x;
  return {cuda::grid_of(1, std::min(cuda::divide_up(rows, y), cuda::kMaxGridY)), {x, y}};
}

}  // namespace

Tensor lse_by_sequence(const Tensor& lse, const Rows& rows, const ExecContext& ctx) {
  const std::int64_t heads = lse.dim(0);
  const Tensor out = ctx.empty({rows.batch, heads, rows.count});
  cuda::launch(ctx,
               {cuda::grid_of(cuda::divide_up(rows.count, std::int64_t{4} * cuda::kBlock),
                              std::min(rows.batch * heads, cuda::kMaxGridY))},
               gather_statistics, lse.data<float>(), lse.dim(1), out.data<float>(), rows, heads);
  return out;
}

void merge_rows(const Tensor& out, const Tensor& lse, const Rows& rows, const Attention& a, const ExecContext& ctx) {
  const auto heads = static_cast<int>(out.dim(1)), dim = static_cast<int>(out.dim(2));
  cuda::visit_float("attention", a.out.dtype(), [&]<class T>() {
    cuda::launch(ctx, by_rows(rows.total() * heads, dim), merge_parts<T>, cuda::heads_of<const __nv_bfloat16>(out),
                 lse.data<float>(), rows, heads, dim, cuda::heads_of<const float>(a.carry), cuda::heads_of<T>(a.out),
                 a.lse.data<float>(), a.lse.dim(1));
  });
  cuda::fill_outside(a, ctx);
}

void add_gradients(const PartGradients& part, const Rows& queries, const Rows& keys, const AttentionBackward& a,
                   const ExecContext& ctx) {
  const auto add_rows = [&](const Tensor& from, const Rows& rows, const Tensor& carry, const Tensor& to) {
    const auto heads = static_cast<int>(from.dim(1)), dim = static_cast<int>(from.dim(2));
    cuda::visit_float("attention_backward", to.dtype(), [&]<class T>() {
      cuda::launch(ctx, by_rows(rows.total() * heads, dim), add_parts<T>, cuda::heads_of<const __nv_bfloat16>(from),
                   rows, heads, dim, cuda::heads_of<const float>(carry), cuda::heads_of<T>(to));
    });
  };
  add_rows(part.dq, queries, a.carry_dq, a.dq);
  add_rows(part.dk, keys, a.carry_dk, a.dk);
  add_rows(part.dv, keys, a.carry_dv, a.dv);
  cuda::fill_outside(a, ctx);
}

}  // namespace ring::cudnn
