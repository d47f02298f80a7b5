#pragma once
// One chunk of the gated delta rule in f32, for heads of any width: the algorithm of cpu/gated_delta.cpp, where its
// formulas and names are explained. A thread block computes a head's chunks one after another, with its matrices in
// global memory and the numbers of each row in shared memory.

#include "kernels/linear_attention/cuda/block_product.cuh"
#include "kernels/linear_attention/gated_delta.h"

namespace ring::cuda {

constexpr int kMaxChunk = static_cast<int>(kDeltaChunk);

// A [N,H,D] or [N,H] tensor; data is null if it is undefined.
template <class T>
struct HeadsOf3 {
  T* data = nullptr;
  std::int64_t stride = 0, head_stride = 0;
  __device__ T* at(std::int64_t row, int head) const { return data + row * stride + head * head_stride; }
};

template <class T>
struct DeltaInputs {
  HeadsOf3<const T> q, k, v;
  HeadsOf3<const float> decay, beta;
  int key_heads, value_heads, key_width, value_width;
  float scale, eps;

  __device__ int key_head(int head) const { return head / (value_heads / key_heads); }
  __device__ int state_floats() const { return key_width * value_width; }
};

// Numbers of each row of a chunk.
struct DeltaRowNumbers {
  float q_rnorm[kMaxChunk], k_rnorm[kMaxChunk], grow[kMaxChunk], rest[kMaxChunk], running[kMaxChunk], rate[kMaxChunk];
};

// Hands out parts of a thread block's temporary memory.
struct DeltaMemory {
  float* next;
  __device__ float* take(int floats) {
    float* at = next;
    next += floats;
    return at;
  }
};

template <class T>
struct DeltaChunk {
  const DeltaInputs<T>& in;
  DeltaRowNumbers& row;
  int head, length = 0;
  std::int64_t first = 0;
  float *q, *k, *u, *ks, *a, *decays, *kk, *qk;

  __device__ DeltaChunk(const DeltaInputs<T>& inputs, DeltaRowNumbers& numbers, int value_head, DeltaMemory& m)
      : in(inputs), row(numbers), head(value_head) {
    q = m.take(kMaxChunk * in.key_width), k = m.take(kMaxChunk * in.key_width);
    u = m.take(kMaxChunk * in.value_width), ks = m.take(kMaxChunk * in.value_width);
    a = m.take(kMaxChunk * kMaxChunk), decays = m.take(kMaxChunk * kMaxChunk);
    kk = m.take(kMaxChunk * kMaxChunk), qk = m.take(kMaxChunk * kMaxChunk);
  }

  __device__ float last_decay() const { return row.grow[length - 1]; }

  __device__ void normalise(const HeadsOf3<const T>& rows, float* to, float* rnorm) const {
    for_warp_rows(length, [&](int i, int lane) {
      const T* x = rows.at(first + i, in.key_head(head));
      float sum = 0;
      for (int c = lane; c < in.key_width; c += kWarp) sum += to_float(x[c]) * to_float(x[c]);
      const float r = 1.0f / sqrtf(warp_sum(sum) + in.eps);
      for (int c = lane; c < in.key_width; c += kWarp) to[i * in.key_width + c] = to_float(x[c]) * r;
      if (lane == 0) rnorm[i] = r;
    });
  }

  __device__ void read_gates() const {
    const int i = static_cast<int>(threadIdx.x);
    if (i < length) {
      row.running[i] = *in.decay.at(first + i, head);
      row.rate[i] = *in.beta.at(first + i, head);
    }
    __syncthreads();
    if (i == 0)
      for (int j = 1; j < length; ++j) row.running[j] += row.running[j - 1];
    __syncthreads();
    if (i >= length) return;
    row.grow[i] = expf(row.running[i]);
    row.rest[i] = expf(row.running[length - 1] - row.running[i]);
  }

  // Reads rows [begin, begin + count) and computes everything but the output, from the state before the chunk. All
  // threads must have finished with the previous chunk.
  __device__ void load(std::int64_t begin, int count, const float* state) {
    first = begin, length = count;
    const int keys = in.key_width, values = in.value_width;
    __syncthreads();
    read_gates();
    normalise(in.q, q, row.q_rnorm);
    normalise(in.k, k, row.k_rnorm);
    __syncthreads();
    block_product<false, true>(length, length, keys, k, keys, k, keys, kk, kMaxChunk);
    block_product<false, true>(length, length, keys, q, keys, k, keys, qk, kMaxChunk);
    block_product<false, false>(length, values, keys, k, keys, state, values, ks, values);
    __syncthreads();
    for_elements(length, length, [&](int i, int j) {
      const int at = i * kMaxChunk + j;
      decays[at] = j <= i ? expf(row.running[i] - row.running[j]) : 0.0f;
      a[at] = j < i ? row.rate[i] * decays[at] * kk[at] : 0.0f;
    });
    for_elements(length, values, [&](int i, int c) {
      u[i * values + c] = row.rate[i] * (to_float(in.v.at(first + i, head)[c]) - row.grow[i] * ks[i * values + c]);
    });
    __syncthreads();
    for (int c = static_cast<int>(threadIdx.x); c < values; c += kBlock)
      for (int i = 1; i < length; ++i) {
        float sum = 0;
#pragma unroll 4
        for (int j = 0; j < i; ++j) sum += a[i * kMaxChunk + j] * u[j * values + c];
        u[i * values + c] -= sum;
      }
    __syncthreads();
  }

  // Computes the rows of the output. Overwrites `qk` and `ks`.
  template <class Out>
  __device__ void write_output(const HeadsOf3<Out>& out, const float* state) const {
    const int keys = in.key_width, values = in.value_width;
    for_elements(length, length, [&](int i, int j) { qk[i * kMaxChunk + j] *= decays[i * kMaxChunk + j]; });
    block_product<false, false>(length, values, keys, q, keys, state, values, ks, values);
    __syncthreads();
    for_elements(length, values, [&](int i, int c) { ks[i * values + c] *= row.grow[i]; });
    __syncthreads();
    block_product<false, false>(length, values, length, qk, kMaxChunk, u, values, ks, values, 1, 1);
    __syncthreads();
    for_elements(length, values,
                 [&](int i, int c) { out.at(first + i, head)[c] = from_float<Out>(in.scale * ks[i * values + c]); });
  }

  // Writes the state after the chunk to `to`, which may be `state`. Overwrites `k`.
  __device__ void advance(const float* state, float* to) const {
    const int keys = in.key_width, values = in.value_width;
    const float decay = last_decay();
    for_elements(length, keys, [&](int i, int c) { k[i * keys + c] *= row.rest[i]; });
    for (int i = static_cast<int>(threadIdx.x); i < keys * values; i += kBlock) to[i] = decay * state[i];
    __syncthreads();
    block_product<true, false>(keys, values, length, k, keys, u, values, to, values, 1, 1);
    __syncthreads();
  }
};

}  // namespace ring::cuda
