#pragma once
// Computes the parts of a chunk that do not depend on the state: T = (I + A)^-1 and P (cpu/gated_delta.cpp defines A
// and P), and the scalars of each row (DeltaNumber). A thread block of four warps computes one chunk of one value head.

#include "kernels/linear_attention/cuda/delta_tiles.cuh"

namespace ring::cuda {

constexpr int kPrepareThreads = 128;

template <int keys>
struct PrepareMemory {
  alignas(16) Bf16 q[kRows * (keys + kPadding)], k[kRows * (keys + kPadding)];
  alignas(16) float a[kRows][kRows + 4];  // column j of A in row j
  float numbers[kNumbers][kRows];
};

// Computes the running sums of g, with two rows per lane of the first warp, and everything that follows from g.
template <int keys>
__device__ inline void read_gates(PrepareMemory<keys>& m, const DeltaInputs<Bf16>& in, const ChunkRows& rows,
                                  int head) {
  const int lane = static_cast<int>(threadIdx.x);
  if (lane >= kWarp) return;
  float g[2];
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int row = 2 * lane + i;
    g[i] = row < rows.length ? *in.decay.at(rows.first + row, head) : 0.0f;
    m.numbers[static_cast<int>(DeltaNumber::rate)][row] =
        row < rows.length ? *in.beta.at(rows.first + row, head) : 0.0f;
  }
  float sum = g[0] + g[1];
#pragma unroll
  for (int distance = 1; distance < kWarp; distance *= 2) {
    const float before = __shfl_up_sync(0xffffffffu, sum, distance);
    if (lane >= distance) sum += before;
  }
  const float last = __shfl_sync(0xffffffffu, sum, kWarp - 1);
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    m.numbers[static_cast<int>(DeltaNumber::running)][2 * lane + i] = i == 0 ? sum - g[1] : sum;
    m.numbers[static_cast<int>(DeltaNumber::last)][2 * lane + i] = expf(last);
  }
}

// Returns the sum of squares of half a row.
template <int keys>
__device__ inline float half_square(const Bf16* row, int half) {
  float sum = 0;
#pragma unroll
  for (int c = 0; c < keys / 2; c += 8)
    for (const float x : unpack(load_pack<Bf16, 8>(row + half * (keys / 2) + c)).v) sum += x * x;
  return sum + __shfl_xor_sync(0xffffffffu, sum, 1);
}

// Two threads per row.
template <int keys>
__device__ inline void compute_numbers(PrepareMemory<keys>& m, const DeltaInputs<Bf16>& in, int length) {
  const int row = static_cast<int>(threadIdx.x) / 2, half = static_cast<int>(threadIdx.x) % 2;
  const float qq = half_square<keys>(m.q + row * (keys + kPadding), half),
              kk = half_square<keys>(m.k + row * (keys + kPadding), half);
  if (half != 0) return;
  const bool exists = row < length;
  const float q_rnorm = exists ? rsqrtf(qq + in.eps) : 0.0f, k_rnorm = exists ? rsqrtf(kk + in.eps) : 0.0f;
  const auto number = [&](DeltaNumber which) -> float& { return m.numbers[static_cast<int>(which)][row]; };
  const float running = number(DeltaNumber::running),
              last = m.numbers[static_cast<int>(DeltaNumber::running)][kRows - 1];
  number(DeltaNumber::grow_k) = expf(running) * k_rnorm;
  number(DeltaNumber::rest_k) = expf(last - running) * k_rnorm;
  number(DeltaNumber::grow_q) = in.scale * expf(running) * q_rnorm;
  number(DeltaNumber::k_rnorm) = k_rnorm;
  number(DeltaNumber::q_rnorm) = q_rnorm;
}

// Computes this warp's 16 rows of A and P. P replaces the first columns of the same rows of q, which only this warp
// reads.
template <int keys>
__device__ inline void compute_pairs(PrepareMemory<keys>& m, float scale) {
  constexpr int stride = keys + kPadding;
  const int warp = static_cast<int>(threadIdx.x) / kWarp, lane = static_cast<int>(threadIdx.x) % kWarp;
  float kk[kRows / 8][4] = {}, qk[kRows / 8][4] = {};
#pragma unroll
  for (int k = 0; k < keys; k += 16) {
    Fragment of_k, of_q, b;
    load_a(of_k, m.k, stride, warp * 16, k);
    load_a(of_q, m.q, stride, warp * 16, k);
#pragma unroll
    for (int n = 0; n < kRows / 16; ++n) {
      if (n > warp) continue;
      load_b(b, m.k, stride, n * 16, k);
      mma_pair(kk + 2 * n, of_k, b);
      mma_pair(qk + 2 * n, of_q, b);
    }
  }
  __syncwarp();
  const float *running = m.numbers[static_cast<int>(DeltaNumber::running)],
              *k_rnorm = m.numbers[static_cast<int>(DeltaNumber::k_rnorm)];
#pragma unroll
  for (int e = 0; e < kRows / 8 * 4; ++e) {
    const int i = warp * 16 + lane / 4 + e % 4 / 2 * 8, j = e / 4 * 8 + lane % 4 * 2 + e % 2;
    const float decay = j <= i ? expf(running[i] - running[j]) * k_rnorm[j] : 0.0f;
    m.a[j][i] =
        j < i ? m.numbers[static_cast<int>(DeltaNumber::rate)][i] * k_rnorm[i] * decay * kk[e / 4][e % 4] : 0.0f;
    qk[e / 4][e % 4] *= scale * m.numbers[static_cast<int>(DeltaNumber::q_rnorm)][i] * decay;
  }
#pragma unroll
  for (int n = 0; n < kRows / 16; ++n) {
    Fragment a;
    to_a(a, qk + 2 * n);
    store_a(a, m.q, stride, warp * 16, n * 16);
  }
}

// Computes column c of (I + A)^-1 by substitution and writes it to column c of `to`.
template <int stride>
__device__ inline void invert_column(const float (&a)[kRows][kRows + 4], int c, Bf16* to) {
  float x[kRows];
#pragma unroll
  for (int i = 0; i < kRows; ++i) x[i] = i == c ? 1.0f : 0.0f;
#pragma unroll
  for (int j = 0; j < kRows; ++j) {
#pragma unroll
    for (int i = j / 4 * 4; i < kRows; i += 4) {
      const float4 v = *reinterpret_cast<const float4*>(&a[j][i]);  // zeros up to the diagonal
      if (i > j) x[i] -= v.x * x[j];
      if (i + 1 > j) x[i + 1] -= v.y * x[j];
      if (i + 2 > j) x[i + 2] -= v.z * x[j];
      if (i + 3 > j) x[i + 3] -= v.w * x[j];
    }
  }
#pragma unroll
  for (int i = 0; i < kRows; ++i) to[i * stride + c] = __float2bfloat16_rn(x[i]);
}

// Copies a square from the first columns of a tile to global memory.
template <int stride>
__device__ inline void write_square(Bf16* to, const Bf16* from) {
  for (int at = static_cast<int>(threadIdx.x); at < kRows * kRows / 8; at += kPrepareThreads)
    store_pack(to + at * 8, load_pack<Bf16, 8>(from + at / 8 * stride + at % 8 * 8));
}

template <int keys>
__global__ void __launch_bounds__(kPrepareThreads)
    delta_prepare(DeltaInputs<Bf16> in, DeltaScratch scratch,
                  const __grid_constant__ Documents<MmaDocument> documents) {
  extern __shared__ __align__(16) unsigned char prepare_memory[];
  auto& m = *reinterpret_cast<PrepareMemory<keys>*>(prepare_memory);
  constexpr int stride = keys + kPadding;
  const int chunk = static_cast<int>(blockIdx.x), head = static_cast<int>(blockIdx.y), of = documents.find(chunk);
  const ChunkRows rows = chunk_rows(documents.rows[of], chunk - documents.before[of]);
  const int key_head = in.key_head(head);
  copy_rows<kPrepareThreads, kRows, keys>(m.q, in.q.at(rows.first, key_head), in.q.stride, rows.length);
  copy_rows<kPrepareThreads, kRows, keys>(m.k, in.k.at(rows.first, key_head), in.k.stride, rows.length);
  cp_async_commit();
  read_gates(m, in, rows, head);
  cp_async_wait<0>();
  __syncthreads();
  compute_numbers(m, in, rows.length);
  __syncthreads();
  compute_pairs(m, in.scale);
  __syncthreads();
  if (threadIdx.x < kRows) invert_column<stride>(m.a, static_cast<int>(threadIdx.x), m.k);
  __syncthreads();
  const std::int64_t item = std::int64_t{chunk} * in.value_heads + head;
  write_square<stride>(scratch.p + item * kRows * kRows, m.q);
  write_square<stride>(scratch.t + item * kRows * kRows, m.k);
  for (int i = static_cast<int>(threadIdx.x); i < kNumbers * kRows; i += kPrepareThreads)
    scratch.numbers[item * kNumbers * kRows + i] = m.numbers[i / kRows][i % kRows];
}

}  // namespace ring::cuda
