#pragma once
// Gradients of a chunk, given the state before it, the gradient of the state after it, U and the gradient of R. A
// thread block of eight warps computes one chunk of one key head, and takes the value heads that share it one after
// another, so that sums have a fixed order. Each warp owns 16 rows and half of the columns. ChunkGradients of
// cpu/gated_delta.cpp has the formulas. The gradients of q and k are accumulated as those of the normalized rows over
// the norms.

#include "kernels/linear_attention/cuda/delta_tiles.cuh"

namespace ring::cuda {

constexpr int kPairThreads = 256, kPairStride = kRows + kPadding;

template <int keys, int values>
struct PairMemory {
  alignas(16) Bf16 q[kRows * (keys + kPadding)], k[kRows * (keys + kPadding)];
  alignas(16) Bf16 s[values * (keys + kPadding)], ds[values * (keys + kPadding)];
  alignas(16) Bf16 u[values * kPairStride], dr[values * kPairStride], dout[kRows * (values + kPadding)];
  alignas(16) Bf16 scores[kSquare], pairs[kSquare];  // gradients of q.k and k.k, divided by the norms
  alignas(16) float numbers[kNumbers * kRows];
  // Parts of the gradients of each row's numbers: of the halves of the columns, of the rows' blocks, of packs of
  // values.
  float beta[2][kRows], of_row[2][kRows], of_column[4][kRows], of_values[values / 8][kRows];
  float grow_q[2][kRows], rest_k[2][kRows], grow_k[2][kRows];  // products of rows, by which decays grow
  float along[2][2][kRows];                                    // of q, k and their gradients
  float states[kPairThreads / kWarp];
};

struct DeltaPairs {
  DeltaInputs<Bf16> in;
  HeadsOf3<const Bf16> dout;
  HeadsOf3<Bf16> dq, dk, dv;  // data: null if not wanted
  HeadsOf3<float> ddecay, dbeta;
  float beta_qkv, beta_gates;
  DeltaScratch scratch;
};

// The warp's rows and half, and the rows of a lane's accumulators.
struct PairPlace {
  int lane, warp, tile, half;
  __device__ PairPlace()
      : lane(static_cast<int>(threadIdx.x) % kWarp),
        warp(static_cast<int>(threadIdx.x) / kWarp),
        tile(warp % 4),
        half(warp / 4) {}
  __device__ int row(int element) const { return tile * 16 + lane / 4 + element % 4 / 2 * 8; }
  __device__ int column(int element) const { return element / 4 * 8 + lane % 4 * 2 + element % 2; }
};

// Returns the sum over the four lanes that hold a row's accumulators.
__device__ inline float quad_sum(float x) {
  x += __shfl_xor_sync(0xffffffffu, x, 1);
  return x + __shfl_xor_sync(0xffffffffu, x, 2);
}

template <int keys>
using KeyTile = float[keys / 16][4];  // a warp's 16 rows and half of the keys
using SquareTile = float[kRows / 16][4];

// c += op(a) b for 16 rows, and `width` columns of b [., width + padding] from column `first` on. Tiles of 16 of the
// inner dimension from `begin` to `end`.
template <bool transposed, int tiles>
__device__ inline void multiply(float (&c)[tiles][4], const Bf16* a, int a_stride, int row, const Bf16* b, int b_stride,
                                int first, int begin, int end) {
  for (int k = begin; k < end; ++k) {
    Fragment x, y;
    if constexpr (transposed)
      load_a_transposed(x, a, a_stride, row, k * 16);
    else
      load_a(x, a, a_stride, row, k * 16);
#pragma unroll
    for (int n = 0; n < tiles / 2; ++n) {
      load_b_transposed(y, b, b_stride, first + n * 16, k * 16);
      mma_pair(c + 2 * n, x, y);
    }
  }
}

// Computes the products of the rows of x with those of k, for the warp's half of the columns.
template <int keys>
__device__ inline void products_of_rows(SquareTile& c, const Bf16* x, const Bf16* k, const PairPlace& at) {
#pragma unroll
  for (int i = 0; i < keys; i += 16) {
    Fragment a, b;
    load_a(a, x, keys + kPadding, at.tile * 16, i);
#pragma unroll
    for (int n = 0; n < 2; ++n) {
      load_b(b, k, keys + kPadding, at.half * 32 + n * 16, i);
      mma_pair(c + 2 * n, a, b);
    }
  }
}

// Computes `scores` and `pairs`, and their share in the gradients of the rows' numbers.
template <int keys, int values>
__device__ inline void compute_scores(PairMemory<keys, values>& m, const SquareTile& kk, const SquareTile& qk,
                                      float scale, const PairPlace& at) {
  SquareTile dp = {}, da = {};
  multiply<false>(dp, m.dout, values + kPadding, at.tile * 16, m.u, kPairStride, at.half * 32, 0, values / 16);
  multiply<true>(da, m.dr, kPairStride, at.tile * 16, m.u, kPairStride, at.half * 32, 0, values / 16);
  const float *running = number_row(m.numbers, DeltaNumber::running), *rate = number_row(m.numbers, DeltaNumber::rate),
              *k_rnorm = number_row(m.numbers, DeltaNumber::k_rnorm),
              *q_rnorm = number_row(m.numbers, DeltaNumber::q_rnorm);
  float beta[2] = {}, of_row[2] = {}, of_column[kRows / 16][2] = {};
#pragma unroll
  for (int e = 0; e < kRows / 16 * 4; ++e) {
    const int i = at.row(e), j = at.half * 32 + at.column(e);
    float &score = dp[e / 4][e % 4], &pair = da[e / 4][e % 4];
    const float decay = j <= i ? expf(running[i] - running[j]) : 0.0f;
    score *= scale * decay * q_rnorm[i] * k_rnorm[j];
    pair *= j < i ? -decay * k_rnorm[i] * k_rnorm[j] : 0.0f;
    const float of_a = pair * kk[e / 4][e % 4];
    pair *= rate[i];
    const float both = j < i ? of_a * rate[i] + score * qk[e / 4][e % 4] : 0.0f;
    beta[e % 4 / 2] += of_a;
    of_row[e % 4 / 2] += both;
    of_column[e / 4][e % 2] += both;
  }
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    beta[r] = quad_sum(beta[r]), of_row[r] = quad_sum(of_row[r]);
    if (at.lane % 4 == 0) m.beta[at.half][at.row(2 * r)] = beta[r], m.of_row[at.half][at.row(2 * r)] = of_row[r];
  }
#pragma unroll
  for (int e = 0; e < kRows / 8; ++e) {
    float sum = of_column[e / 2][e % 2];
#pragma unroll
    for (int distance = 4; distance < kWarp; distance *= 2) sum += __shfl_xor_sync(0xffffffffu, sum, distance);
    if (at.lane < 4) m.of_column[at.tile][at.half * 32 + e / 2 * 8 + at.lane * 2 + e % 2] = sum;
  }
#pragma unroll
  for (int n = 0; n < 2; ++n) {
    Fragment a;
    to_a(a, dp + 2 * n);
    store_a(a, m.scores, kPairStride, at.tile * 16, at.half * 32 + n * 16);
    to_a(a, da + 2 * n);
    store_a(a, m.pairs, kPairStride, at.tile * 16, at.half * 32 + n * 16);
  }
}

// Stores dv = beta dR, and computes dR . v for each row and pack of values.
template <int keys, int values>
__device__ inline void through_values(PairMemory<keys, values>& m, const DeltaPairs& p, const ChunkRows& rows,
                                      int head) {
  const float* rate = number_row(m.numbers, DeltaNumber::rate);
  for (int at = static_cast<int>(threadIdx.x); at < kRows * values / 8; at += kPairThreads) {
    const int row = at % kRows, pack_of = at / kRows;
    float product = 0;
    if (row < rows.length) {
      Floats<8> d;
      const Floats<8> v = unpack(load_pack<Bf16, 8>(p.in.v.at(rows.first + row, head) + pack_of * 8));
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        d.v[i] = to_float(m.dr[(pack_of * 8 + i) * kPairStride + row]);
        product += d.v[i] * v.v[i];
        d.v[i] *= rate[row];
      }
      if (p.dv.data) accumulate(p.dv.at(rows.first + row, head), pack_of * 8, values, p.beta_qkv, d);
    }
    m.of_values[pack_of][row] = product;
  }
}

// Computes the product of the state and its gradient.
template <int keys, int values>
__device__ inline void sum_states(PairMemory<keys, values>& m) {
  float sum = 0;
  for (int at = static_cast<int>(threadIdx.x); at < values * keys / 8; at += kPairThreads) {
    const int offset = at / (keys / 8) * (keys + kPadding) + at % (keys / 8) * 8;
    const Floats<8> x = unpack(load_pack<Bf16, 8>(m.s + offset)), y = unpack(load_pack<Bf16, 8>(m.ds + offset));
#pragma unroll
    for (int i = 0; i < 8; ++i) sum += x.v[i] * y.v[i];
  }
  sum = warp_sum(sum);
  if (threadIdx.x % kWarp == 0) m.states[threadIdx.x / kWarp] = sum;
}

// Returns the sums of the warp's columns of x * y, for both rows of a lane: x in accumulators, y in shared memory.
template <int keys>
__device__ inline float2 dot_rows(const KeyTile<keys>& x, const Bf16* y, const PairPlace& at) {
  float sum[2] = {};
#pragma unroll
  for (int n = 0; n < keys / 16; ++n)
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const std::uint32_t two = *reinterpret_cast<const std::uint32_t*>(y + at.row(2 * r) * (keys + kPadding) +
                                                                        at.half * (keys / 2) + n * 8 + at.lane % 4 * 2);
      sum[r] += x[n][2 * r] * low_half(two) + x[n][2 * r + 1] * high_half(two);
    }
  return {quad_sum(sum[0]), quad_sum(sum[1])};
}

// to += factor x for the rows' factors times `sign`, and product[half] = the factors times the products of rows of x
// and y. If `rates` is not null, the former are also multiplied by the rates.
template <int keys>
__device__ inline void add_scaled(KeyTile<keys>& to, const KeyTile<keys>& x, const float* factors, float sign,
                                  const float* rates, const Bf16* y, float* product, const PairPlace& at) {
  const float2 sums = dot_rows<keys>(x, y, at);
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const int row = at.row(2 * r);
    const float factor = factors[row], scaled = sign * factor * (rates ? rates[row] : 1.0f);
    if (at.lane % 4 == 0) product[row] = factor * (r == 0 ? sums.x : sums.y);
#pragma unroll
    for (int n = 0; n < keys / 16; ++n)
      to[n][2 * r] += scaled * x[n][2 * r], to[n][2 * r + 1] += scaled * x[n][2 * r + 1];
  }
}

// Adds a value head's gradients of q and k.
template <int keys, int values>
__device__ inline void add_keys(PairMemory<keys, values>& m, KeyTile<keys>& dq, KeyTile<keys>& dk,
                                const PairPlace& at) {
  constexpr int stride = keys + kPadding;
  const int row = at.tile * 16, first = at.half * (keys / 2);
  const auto through = [&](KeyTile<keys>& to, auto transposed, const Bf16* a, int a_stride, const Bf16* b,
                           DeltaNumber factor, float sign, bool rates, const Bf16* y, float(&product)[2][kRows]) {
    KeyTile<keys> t = {};
    multiply<decltype(transposed)::value>(t, a, a_stride, row, b, stride, first, 0, values / 16);
    add_scaled<keys>(to, t, number_row(m.numbers, factor), sign,
                     rates ? number_row(m.numbers, DeltaNumber::rate) : nullptr, y, product[at.half], at);
  };
  through(dq, std::false_type{}, m.dout, values + kPadding, m.s, DeltaNumber::grow_q, 1, false, m.q, m.grow_q);
  through(dk, std::true_type{}, m.u, kPairStride, m.ds, DeltaNumber::rest_k, 1, false, m.k, m.rest_k);
  through(dk, std::true_type{}, m.dr, kPairStride, m.s, DeltaNumber::grow_k, -1, true, m.k, m.grow_k);
  multiply<false>(dq, m.scores, kPairStride, row, m.k, stride, first, 0, at.tile + 1);
  multiply<true>(dk, m.scores, kPairStride, row, m.q, stride, first, at.tile, kRows / 16);
  multiply<false>(dk, m.pairs, kPairStride, row, m.k, stride, first, 0, at.tile + 1);
  multiply<true>(dk, m.pairs, kPairStride, row, m.k, stride, first, at.tile, kRows / 16);
}

// Adds up the gradients of the gates of two rows per lane, and stores them. Called by one warp.
template <int keys, int values>
__device__ inline void store_gates(const PairMemory<keys, values>& m, const DeltaPairs& p, const ChunkRows& rows,
                                   int head) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  float running[2], beta[2], moved = 0;
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const int row = 2 * lane + r;
    const float rest = m.rest_k[0][row] + m.rest_k[1][row], of_state = m.grow_k[0][row] + m.grow_k[1][row];
    running[r] = m.of_row[0][row] + m.of_row[1][row] + m.grow_q[0][row] + m.grow_q[1][row] - rest -
                 number_row(m.numbers, DeltaNumber::rate)[row] * of_state;
#pragma unroll
    for (int t = 0; t < 4; ++t) running[r] -= m.of_column[t][row];
    beta[r] = m.beta[0][row] + m.beta[1][row] - of_state;
#pragma unroll
    for (int v = 0; v < values / 8; ++v) beta[r] += m.of_values[v][row];
    moved += rest;
  }
  float last = 0;
#pragma unroll
  for (int w = 0; w < kPairThreads / kWarp; ++w) last += m.states[w];
  last = last * number_row(m.numbers, DeltaNumber::last)[0] + warp_sum(moved);
  float sum = running[0] + running[1];  // of this lane's and later rows
#pragma unroll
  for (int distance = 1; distance < kWarp; distance *= 2) {
    const float after = __shfl_down_sync(0xffffffffu, sum, distance);
    if (lane + distance < kWarp) sum += after;
  }
  const auto store = [&p](float* to, float value) { *to = p.beta_gates == 0 ? value : p.beta_gates * *to + value; };
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const int row = 2 * lane + r;
    if (row >= rows.length) continue;
    if (p.ddecay.data) store(p.ddecay.at(rows.first + row, head), last + sum - (r == 1 ? running[0] : 0.0f));
    if (p.dbeta.data) store(p.dbeta.at(rows.first + row, head), beta[r]);
  }
}

// Stores the gradients of rows x, given d = those of the normalized rows over the norms: d - x (x . d) / |x|^2.
template <int keys>
__device__ inline void store_rows(const KeyTile<keys>& d, const Bf16* x, const float* rnorm,
                                  const float (&along)[2][kRows], const HeadsOf3<Bf16>& to, const ChunkRows& rows,
                                  int head, float beta, const PairPlace& at) {
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const int row = at.row(2 * r);
    if (row >= rows.length) continue;
    const float factor = rnorm[row] * rnorm[row] * (along[0][row] + along[1][row]);
#pragma unroll
    for (int n = 0; n < keys / 16; ++n) {
      const int column = at.half * (keys / 2) + n * 8 + at.lane % 4 * 2;
      const std::uint32_t two = *reinterpret_cast<const std::uint32_t*>(x + row * (keys + kPadding) + column);
      auto* out = reinterpret_cast<std::uint32_t*>(to.at(rows.first + row, head) + column);
      float first = d[n][2 * r] - factor * low_half(two), second = d[n][2 * r + 1] - factor * high_half(two);
      if (beta != 0) first += beta * low_half(*out), second += beta * high_half(*out);
      *out = pack_bf16(first, second);
    }
  }
}

// Requests copies of a value head's operands: in a second group those that only add_keys() needs.
template <int keys, int values>
__device__ inline void copy_pair_head(PairMemory<keys, values>& m, const DeltaPairs& p, const ChunkRows& rows,
                                      std::int64_t item, int head) {
  constexpr int n = kPairThreads;
  copy_rows<n, values, kRows>(m.u, p.scratch.u + item * values * kRows, kRows, values);
  copy_rows<n, values, kRows>(m.dr, p.scratch.dr + item * values * kRows, kRows, values);
  copy_rows<n, kRows, values>(m.dout, p.dout.at(rows.first, head), p.dout.stride, rows.length);
  copy_numbers<n, kNumbers * kRows>(m.numbers, p.scratch.numbers + item * kNumbers * kRows);
  cp_async_commit();
  copy_rows<n, values, keys>(m.s, p.scratch.s + item * values * keys, keys, values);
  copy_rows<n, values, keys>(m.ds, p.scratch.ds + item * values * keys, keys, values);
  cp_async_commit();
}

template <int keys, int values>
__global__ void __launch_bounds__(kPairThreads)
    delta_pairs(DeltaPairs p, const __grid_constant__ Documents<MmaDocument> documents) {
  extern __shared__ __align__(16) unsigned char pair_memory[];
  auto& m = *reinterpret_cast<PairMemory<keys, values>*>(pair_memory);
  const int chunk = static_cast<int>(blockIdx.x), key_head = static_cast<int>(blockIdx.y), of = documents.find(chunk);
  const ChunkRows rows = chunk_rows(documents.rows[of], chunk - documents.before[of]);
  const int group = p.in.value_heads / p.in.key_heads;
  const PairPlace at;
  copy_rows<kPairThreads, kRows, keys>(m.q, p.in.q.at(rows.first, key_head), p.in.q.stride, rows.length);
  copy_rows<kPairThreads, kRows, keys>(m.k, p.in.k.at(rows.first, key_head), p.in.k.stride, rows.length);
  KeyTile<keys> dq = {}, dk = {};
  SquareTile kk = {}, qk = {};
  for (int head = key_head * group; head < (key_head + 1) * group; ++head) {
    copy_pair_head(m, p, rows, std::int64_t{chunk} * p.in.value_heads + head, head);
    cp_async_wait<1>();
    __syncthreads();
    if (head == key_head * group) {
      products_of_rows<keys>(kk, m.k, m.k, at);
      products_of_rows<keys>(qk, m.q, m.k, at);
    }
    compute_scores(m, kk, qk, p.in.scale, at);
    through_values(m, p, rows, head);
    cp_async_wait<0>();
    __syncthreads();
    sum_states(m);
    add_keys(m, dq, dk, at);
    __syncthreads();
    if (at.warp == 0) store_gates(m, p, rows, head);
    __syncthreads();
  }
  const float2 q = dot_rows<keys>(dq, m.q, at), k = dot_rows<keys>(dk, m.k, at);
  if (at.lane % 4 == 0) {
    m.along[0][at.half][at.row(0)] = q.x, m.along[0][at.half][at.row(2)] = q.y;
    m.along[1][at.half][at.row(0)] = k.x, m.along[1][at.half][at.row(2)] = k.y;
  }
  __syncthreads();
  if (p.dq.data)
    store_rows<keys>(dq, m.q, number_row(m.numbers, DeltaNumber::q_rnorm), m.along[0], p.dq, rows, key_head, p.beta_qkv,
                     at);
  if (p.dk.data)
    store_rows<keys>(dk, m.k, number_row(m.numbers, DeltaNumber::k_rnorm), m.along[1], p.dk, rows, key_head, p.beta_qkv,
                     at);
}

}  // namespace ring::cuda
