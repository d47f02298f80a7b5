// Pools with learned token weights. One thread block per pool and head; its warps take the pool's rows in turn. The
// weights are in device memory, since a pool may have any number of rows.
#include "kernels/attention/pools/weighted_pool.h"

#include "kernels/attention/cuda/documents.cuh"
#include "kernels/cuda/launch.h"

namespace ring::cuda {
namespace {

template <class T>
struct HeadRows {  // [N,H,D]
  T* data;
  std::int64_t row, head;

  __device__ T* at(std::int64_t n, int h) const { return data + n * row + h * head; }
};
template <class T, class Element = T>
HeadRows<T> rows_of_heads(const Tensor& t) {
  return {device_data<Element>(t), t.stride(0), t.stride(1)};
}

// A pool: its row in the results, and the row of its first token.
struct Pool {
  std::int64_t out, first;
};
__device__ Pool pool_of(const Documents<PoolSegment>& documents, int size) {
  const int at = static_cast<int>(blockIdx.x), d = documents.find(at), number = at - documents.before[d];
  const PoolSegment r = documents.rows[d];
  return {std::int64_t{r.out} + number, std::int64_t{r.first} + std::int64_t{number} * size};
}

// Returns the maximum over all threads of the block. shared: one float per warp.
__device__ float block_max(float v, float* shared) {
  for (int distance = kWarp / 2; distance > 0; distance /= 2) v = fmaxf(v, __shfl_xor_sync(0xffffffffu, v, distance));
  if (threadIdx.x % kWarp == 0) shared[threadIdx.x / kWarp] = v;
  __syncthreads();
  v = shared[0];
  for (int w = 1; w < kWarps; ++w) v = fmaxf(v, shared[w]);
  return v;
}

// Returns the dot product of two rows. Called by a warp.
template <class A, class B>
__device__ float dot_row(const A* a, const B* b, int dim, int lane) {
  float sum = 0;
  for (int c = lane; c < dim; c += kWarp) sum += to_float(a[c]) * to_float(b[c]);
  return warp_sum(sum);
}

// Calls fn(column, sum over the pool's rows r of f(r, column)) for each column, on one thread. Warps take rows in turn.
template <class F, class Fn>
__device__ void column_sums(int size, int dim, const F& f, const Fn& fn) {
  __shared__ float sums[kWarps][kWarp];
  const int lane = static_cast<int>(threadIdx.x) % kWarp, warp = static_cast<int>(threadIdx.x) / kWarp;
  for (int base = 0; base < dim; base += kWarp) {
    const int column = base + lane;
    float sum = 0;
    if (column < dim)
      for (int r = warp; r < size; r += kWarps) sum += f(r, column);
    sums[warp][lane] = sum;
    __syncthreads();
    if (warp == 0 && column < dim) {
      float total = 0;
      for (int w = 0; w < kWarps; ++w) total += sums[w][lane];
      fn(column, total);
    }
    __syncthreads();
  }
}

template <class T>
struct Forward {
  HeadRows<const T> k, v, x;
  const T *positions, *query;
  T *keys, *values;
  float* weights;
  int heads, dim, size;
};

template <class T>
__global__ void __launch_bounds__(kBlock)
    pool_rows(const __grid_constant__ Documents<PoolSegment> documents, Forward<T> p) {
  __shared__ float largest[kWarps];
  const int lane = static_cast<int>(threadIdx.x) % kWarp, warp = static_cast<int>(threadIdx.x) / kWarp;
  const int head = static_cast<int>(blockIdx.y);
  const Pool pool = pool_of(documents, p.size);
  const std::int64_t out = pool.out * p.heads + head;
  float* const w = p.weights + out * p.size;
  for (int r = warp; r < p.size; r += kWarps) {
    const float score = dot_row(p.query + head * p.dim, p.x.at(pool.first + r, head), p.dim, lane);
    if (lane == 0) w[r] = to_float(p.positions[std::int64_t{head} * p.size + r]) + score;
  }
  __syncthreads();
  float most = -INFINITY, total = 0;
  for (int r = static_cast<int>(threadIdx.x); r < p.size; r += kBlock) most = fmaxf(most, w[r]);
  most = block_max(most, largest);
  for (int r = static_cast<int>(threadIdx.x); r < p.size; r += kBlock) total += w[r] = expf(w[r] - most);
  total = group_sum<kBlock>(total);  // its barriers also make all weights visible to every thread
  const auto weighted = [&](const HeadRows<const T>& x) {
    return [&](int r, int column) { return w[r] * to_float(x.at(pool.first + r, head)[column]); };
  };
  column_sums(p.size, p.dim, weighted(p.k),
              [&](int c, float sum) { p.keys[out * p.dim + c] = from_float<T>(sum / total); });
  column_sums(p.size, p.dim, weighted(p.v),
              [&](int c, float sum) { p.values[out * p.dim + c] = from_float<T>(sum / total); });
  for (int r = static_cast<int>(threadIdx.x); r < p.size; r += kBlock) w[r] /= total;
}

template <class T>
struct Backward {
  HeadRows<const T> k, v;
  const T* query;
  const float *weights, *dkeys, *dvalues;
  HeadRows<float> dk, dv;
  float *dpositions, *dquery;
  int heads, dim, size;
};

template <class T>
__global__ void __launch_bounds__(kBlock)
    add_gradients(const __grid_constant__ Documents<PoolSegment> documents, Backward<T> p) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp, warp = static_cast<int>(threadIdx.x) / kWarp;
  const int head = static_cast<int>(blockIdx.y);
  const Pool pool = pool_of(documents, p.size);
  const std::int64_t out = pool.out * p.heads + head;
  const float *const w = p.weights + out * p.size, *const dkey = p.dkeys + out * p.dim,
                     *const dvalue = p.dvalues + out * p.dim;
  const T* const query = p.query + head * p.dim;
  float* const ds = p.dpositions + out * p.size;
  for (int r = warp; r < p.size; r += kWarps) {
    const float dw = dot_row(p.k.at(pool.first + r, head), dkey, p.dim, lane) +
                     dot_row(p.v.at(pool.first + r, head), dvalue, p.dim, lane);
    if (lane == 0) ds[r] = dw;
  }
  __syncthreads();
  float mean = 0;
  for (int r = static_cast<int>(threadIdx.x); r < p.size; r += kBlock) mean += w[r] * ds[r];
  mean = group_sum<kBlock>(mean);
  for (int r = static_cast<int>(threadIdx.x); r < p.size; r += kBlock) ds[r] = w[r] * (ds[r] - mean);
  __syncthreads();
  for (int r = warp; r < p.size; r += kWarps) {
    float *const to_key = p.dk.at(pool.first + r, head), *const to_value = p.dv.at(pool.first + r, head);
    for (int c = lane; c < p.dim; c += kWarp) {
      // Products are rounded before they are added, so that learned weights of 0 give the same bits as
      // block_pool_backward.
      to_key[c] += __fmul_rn(w[r], dkey[c]);
      to_value[c] += __fmul_rn(w[r], dvalue[c]) + ds[r] * to_float(query[c]);
    }
  }
  column_sums(
      p.size, p.dim, [&](int r, int c) { return ds[r] * to_float(p.v.at(pool.first + r, head)[c]); },
      [&](int c, float sum) { p.dquery[out * p.dim + c] = sum; });
}

template <class Launch>
void for_pools(const std::vector<PoolSegment>& rows, int size, int heads, const Launch& launch_over) {
  RING_CHECK(heads <= kMaxGridY, "weighted_pool: ", heads, " heads are more than ", kMaxGridY);
  for_documents(
      rows, [&](const PoolSegment& r) { return r.count / size; },
      [&](const Documents<PoolSegment>& some) { launch_over(grid_of(some.before[some.count], heads), some); });
}

void run(const WeightedPool& a, const ExecContext& ctx) {
  check(a);
  const int heads = static_cast<int>(a.k.dim(1)), dim = static_cast<int>(a.k.dim(2)),
            size = static_cast<int>(a.weights.dim(2));
  visit_float("weighted_pool", a.k.dtype(), [&]<class T>() {
    const Forward<T> p{rows_of_heads<const T, T>(a.k),
                       rows_of_heads<const T, T>(a.v),
                       rows_of_heads<const T, T>(a.x),
                       device_data<T>(a.positions),
                       device_data<T>(a.query),
                       device_data<T>(a.keys),
                       device_data<T>(a.values),
                       device_data<float>(a.weights),
                       heads,
                       dim,
                       size};
    for_pools(a.rows, size, heads,
              [&](dim3 grid, const Documents<PoolSegment>& some) { launch(ctx, {grid}, pool_rows<T>, some, p); });
  });
}

void run_backward(const WeightedPoolBackward& a, const ExecContext& ctx) {
  check(a);
  const int heads = static_cast<int>(a.k.dim(1)), dim = static_cast<int>(a.k.dim(2)),
            size = static_cast<int>(a.weights.dim(2));
  visit_float("weighted_pool_backward", a.k.dtype(), [&]<class T>() {
    const Backward<T> p{rows_of_heads<const T, T>(a.k),
                        rows_of_heads<const T, T>(a.v),
                        device_data<T>(a.query),
                        device_data<float>(a.weights),
                        device_data<float>(a.dkeys),
                        device_data<float>(a.dvalues),
                        rows_of_heads<float>(a.dk),
                        rows_of_heads<float>(a.dv),
                        device_data<float>(a.dpositions),
                        device_data<float>(a.dquery),
                        heads,
                        dim,
                        size};
    for_pools(a.rows, size, heads,
              [&](dim3 grid, const Documents<PoolSegment>& some) { launch(ctx, {grid}, add_gradients<T>, some, p); });
  });
}

const bool added_weighted_pool[] = {weighted_pool_kernel.add(Backend::cuda, {"pools", run}),
                                    weighted_pool_backward_kernel.add(Backend::cuda, {"pools", run_backward})};

}  // namespace
}  // namespace ring::cuda
