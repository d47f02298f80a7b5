#pragma once
// The recurrence over chunks, forward and backward, for 32 channels of values of one head: a thread block has four
// warps. Two of them carry the transposed state in registers, 16 channels each, in f32. The other two take the rounded
// state and U of the previous chunk from shared memory, and compute its output, or store both for the backward. So the
// serial chain contains only the products on which the next chunk depends. Chunks are copied to shared memory two
// chunks ahead.

#include "kernels/linear_attention/cuda/delta_tiles.cuh"

namespace ring::cuda {

constexpr int kRecurrenceThreads = 128, kBlockValues = 32, kWarpValues = 16;
constexpr int kSquareStride = kRows + kPadding;

// Results of a chain warp for its partner: rows are its 16 channels of values.
template <int keys>
struct alignas(16) Handoff {
  Bf16 s[kWarpValues * (keys + kPadding)];  // S^T before the chunk; in the backward, the gradient of that after it
  Bf16 u[kWarpValues * kSquareStride];      // U^T; in the backward, the gradient of R^T
};

template <int keys>
struct alignas(16) ForwardStage {
  Bf16 k[kRows * (keys + kPadding)], v[kRows * (kBlockValues + kPadding)], t[kSquare];
  float numbers[kRecurrenceNumbers * kRows];
};
template <int keys>
struct alignas(16) OutputStage {
  Bf16 q[kRows * (keys + kPadding)], p[kSquare];
  float grow_q[kRows];
};
template <int keys>
struct ForwardMemory {
  ForwardStage<keys> stages[3];
  OutputStage<keys> outputs[3];
  Handoff<keys> handoff[2][2];  // of even and odd chunks, of each chain warp
};

// Accumulators of a chain warp's part of S^T: 16 channels of values, all keys.
template <int keys>
struct StateTile {
  float c[keys / 8][4] = {};

  // Calls f(element, offset in [Dk,Dv]) for all elements.
  template <class F>
  __device__ void for_each(int first_value, int values, const F& f) {
    const int lane = static_cast<int>(threadIdx.x) % kWarp;
#pragma unroll
    for (int e = 0; e < keys / 8 * 4; ++e) {
      const int k = e / 4 * 8 + lane % 4 * 2 + e % 2, v = first_value + lane / 4 + e % 4 / 2 * 8;
      f(c[e / 4][e % 4], k * values + v);
    }
  }
  __device__ void scale(float factor) {
#pragma unroll
    for (int e = 0; e < keys / 8 * 4; ++e) c[e / 4][e % 4] *= factor;
  }
  // Rounds the tile to bf16, as A fragments of the MMA, and also stores them in `to`.
  __device__ void round(Fragment (&a)[keys / 16], Bf16* to) const {
#pragma unroll
    for (int k = 0; k < keys / 16; ++k) {
      to_a(a[k], c + 2 * k);
      store_a(a[k], to, keys + kPadding, 0, k * 16);
    }
  }
};

// x^T [16, rows] += s^T y^T, for y [rows, keys] in shared memory.
template <int keys>
__device__ inline void multiply_rows(float (&x)[kRows / 8][4], const Fragment (&s)[keys / 16], const Bf16* y) {
#pragma unroll
  for (int k = 0; k < keys / 16; ++k)
#pragma unroll
    for (int n = 0; n < kRows / 16; ++n) {
      Fragment b;
      load_b(b, y, keys + kPadding, n * 16, k * 16);
      mma_pair(x + 2 * n, s[k], b);
    }
}

// s^T [16, keys] += a^T y for a fragment of 16 rows of y [rows, keys] from `row` on.
template <int keys>
__device__ inline void add_rows(float (&s)[keys / 8][4], const Fragment& a, const Bf16* y, int row) {
#pragma unroll
  for (int n = 0; n < keys / 16; ++n) {
    Fragment b;
    load_b_transposed(b, y, keys + kPadding, n * 16, row);
    mma_pair(s + 2 * n, a, b);
  }
}

// Computes U^T (U: rows that the chunk's tokens add to the state; cpu/gated_delta.cpp) and replaces the state S by the
// state after the chunk. Leaves U^T and the state before the chunk in `to`, for the warps that compute outputs.
template <int keys>
__device__ inline void forward_step(StateTile<keys>& state, const ForwardStage<keys>& in, int first_value,
                                    Handoff<keys>& to) {
  float x[kRows / 8][4] = {}, u[kRows / 8][4] = {};
  {
    Fragment s[keys / 16];
    state.round(s, to.s);
    multiply_rows<keys>(x, s, in.k);
  }
#pragma unroll
  for (int n = 0; n < kRows / 16; ++n) {
    Fragment v;
    load_a_transposed(v, in.v, kBlockValues + kPadding, first_value, n * 16);
#pragma unroll
    for (int m = 0; m < 2; ++m) {
      const int column = n * 16 + m * 8;
      const float2 grow = column_numbers(number_row(in.numbers, DeltaNumber::grow_k), column),
                   rate = column_numbers(number_row(in.numbers, DeltaNumber::rate), column);
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        float* at = x[2 * n + m] + 2 * half;
        const std::uint32_t two = part_of(v, m, half);
        at[0] = rate.x * (low_half(two) - grow.x * at[0]);
        at[1] = rate.y * (high_half(two) - grow.y * at[1]);
      }
    }
    Fragment r;
    to_a(r, x + 2 * n);
#pragma unroll
    for (int k = n; k < kRows / 16; ++k) {  // T is lower triangular
      Fragment b;
      load_b(b, in.t, kSquareStride, k * 16, n * 16);
      mma_pair(u + 2 * k, r, b);
    }
  }
  state.scale(number_row(in.numbers, DeltaNumber::last)[0]);
#pragma unroll
  for (int n = 0; n < kRows / 16; ++n) {
    Fragment a;
    to_a(a, u + 2 * n);
    store_a(a, to.u, kSquareStride, 0, n * 16);
#pragma unroll
    for (int m = 0; m < 2; ++m) {
      const float2 rest = column_numbers(number_row(in.numbers, DeltaNumber::rest_k), n * 16 + m * 8);
#pragma unroll
      for (int half = 0; half < 2; ++half) u[2 * n + m][2 * half] *= rest.x, u[2 * n + m][2 * half + 1] *= rest.y;
    }
    to_a(a, u + 2 * n);
    add_rows<keys>(state.c, a, in.k, n * 16);
  }
}

// Computes this warp's 16 columns of the chunk's output. Overwrites `from`.
template <int keys>
__device__ inline void output_step(Handoff<keys>& from, const OutputStage<keys>& in, Bf16* out, std::int64_t stride,
                                   int length) {
  float y[kRows / 8][4] = {};
  {
    Fragment s[keys / 16];
#pragma unroll
    for (int k = 0; k < keys / 16; ++k) load_a(s[k], from.s, keys + kPadding, 0, k * 16);
    multiply_rows<keys>(y, s, in.q);
  }
#pragma unroll
  for (int n = 0; n < kRows / 8; ++n) {
    const float2 grow = column_numbers(in.grow_q, n * 8);
    y[n][0] *= grow.x, y[n][1] *= grow.y, y[n][2] *= grow.x, y[n][3] *= grow.y;
  }
#pragma unroll
  for (int k = 0; k < kRows / 16; ++k) {
    Fragment u;
    load_a(u, from.u, kSquareStride, 0, k * 16);
#pragma unroll
    for (int n = k; n < kRows / 16; ++n) {  // P is lower triangular
      Fragment b;
      load_b(b, in.p, kSquareStride, n * 16, k * 16);
      mma_pair(y + 2 * n, u, b);
    }
  }
  __syncwarp();
  constexpr int staged = kWarpValues;  // elements of a row of the staged output, 2 KiB in all
#pragma unroll
  for (int n = 0; n < kRows / 16; ++n) {
    Fragment a;
    to_a(a, y + 2 * n);
    store_a_transposed(a, from.s, staged, 0, n * 16);
  }
  __syncwarp();
  for (int at = static_cast<int>(threadIdx.x) % kWarp; at < 2 * length; at += kWarp)
    store_pack(out + at / 2 * stride + at % 2 * 8, load_pack<Bf16, 8>(from.s + at * 8));
}

// Copies the rounded state and U, or their gradients, to global memory.
template <int keys>
__device__ inline void store_handoff(const Handoff<keys>& from, Bf16* s, Bf16* u) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
#pragma unroll
  for (int at = lane; at < kWarpValues * keys / 8; at += kWarp)
    store_pack(s + at * 8, load_pack<Bf16, 8>(from.s + at / (keys / 8) * (keys + kPadding) + at % (keys / 8) * 8));
#pragma unroll
  for (int at = lane; at < kWarpValues * kRows / 8; at += kWarp)
    store_pack(u + at * 8, load_pack<Bf16, 8>(from.u + at / 8 * kSquareStride + at % 8 * 8));
}

struct DeltaRecurrence {
  DeltaInputs<Bf16> in;
  HeadsOf3<Bf16> out;
  DeltaScratch scratch;
  float *initial, *final, *states;  // null if undefined
};

// The chunks that a thread block computes: [begin, end) of document `d`, the first of which is number `number`.
struct ChunkRange {
  MmaDocument d;
  int begin, end, number;
};
__device__ inline ChunkRange whole_document(const Documents<MmaDocument>& all, int document) {
  const int count = all.before[document + 1] - all.before[document];
  return {all.rows[document], 0, count, all.before[document]};
}
// Blocks of kStateTokens rows, whose first state is saved.
__device__ inline ChunkRange saved_block(const Documents<MmaDocument>& all, int block) {
  constexpr int chunks = static_cast<int>(kStateTokens) / kRows;
  int d = 0;
  for (;; ++d) {
    const int count = all.before[d + 1] - all.before[d], blocks = (count + chunks - 1) / chunks;
    if (block < blocks)
      return {all.rows[d], block * chunks, min((block + 1) * chunks, count), all.before[d] + block * chunks};
    block -= blocks;
  }
}

// Issues the async copies of chunk c of the range: the operands of the warps that carry the state from chunk to chunk.
template <int keys, int values>
__device__ inline void copy_forward_stage(ForwardStage<keys>& to, const DeltaRecurrence& p, const ChunkRange& range,
                                          int c, int head, int first_value) {
  constexpr int n = kRecurrenceThreads;
  const ChunkRows rows = chunk_rows(range.d, c);
  const std::int64_t item = std::int64_t{range.number + c - range.begin} * p.in.value_heads + head;
  copy_rows<n, kRows, keys>(to.k, p.in.k.at(rows.first, p.in.key_head(head)), p.in.k.stride, rows.length);
  copy_rows<n, kRows, kBlockValues>(to.v, p.in.v.at(rows.first, head) + first_value, p.in.v.stride, rows.length);
  copy_rows<n, kRows, kRows>(to.t, p.scratch.t + item * kRows * kRows, kRows, kRows);
  copy_numbers<n, kRecurrenceNumbers * kRows>(to.numbers, p.scratch.numbers + item * kNumbers * kRows);
}
template <int keys>
__device__ inline void copy_output_stage(OutputStage<keys>& to, const DeltaRecurrence& p, const ChunkRange& range,
                                         int c, int head) {
  constexpr int n = kRecurrenceThreads;
  const ChunkRows rows = chunk_rows(range.d, c);
  const std::int64_t item = std::int64_t{range.number + c - range.begin} * p.in.value_heads + head;
  copy_rows<n, kRows, keys>(to.q, p.in.q.at(rows.first, p.in.key_head(head)), p.in.q.stride, rows.length);
  copy_rows<n, kRows, kRows>(to.p, p.scratch.p + item * kRows * kRows, kRows, kRows);
  copy_numbers<n, kRows>(to.grow_q, number_row(p.scratch.numbers + item * kNumbers * kRows, DeltaNumber::grow_q));
}

// Returns the state of a head in [documents or slots,Hv,Dk,Dv]; null if there is none.
__device__ inline float* head_state(float* all, std::int64_t index, int head, const DeltaInputs<Bf16>& in) {
  return all ? all + (index * in.value_heads + head) * in.state_floats() : nullptr;
}

// Reads the state before chunk `begin` of the range.
template <int keys, int values>
__device__ inline void read_state(StateTile<keys>& state, const DeltaRecurrence& p, const ChunkRange& range, int head,
                                  int value) {
  const float* from = range.begin > 0
                          ? head_state(p.states, (range.d.first + range.begin * kRows) / kStateTokens, head, p.in)
                          : head_state(p.initial, range.d.index, head, p.in);
  if (from) state.for_each(value, values, [&](float& x, int at) { x = from[at]; });
}

// outputs: computes outputs, and saves states and the final state. Otherwise stores the state before each chunk and U.
template <int keys, int values, bool outputs>
__global__ void __launch_bounds__(kRecurrenceThreads)
    delta_forward(DeltaRecurrence p, const __grid_constant__ Documents<MmaDocument> documents) {
  extern __shared__ __align__(16) unsigned char forward_memory[];
  auto& m = *reinterpret_cast<ForwardMemory<keys>*>(forward_memory);
  constexpr int saved = static_cast<int>(kStateTokens) / kRows;
  const int first_value = static_cast<int>(blockIdx.x) * kBlockValues, head = static_cast<int>(blockIdx.y);
  const int warp = static_cast<int>(threadIdx.x) / kWarp, pair = warp % 2, of = static_cast<int>(blockIdx.z);
  const ChunkRange range = outputs ? whole_document(documents, of) : saved_block(documents, of);
  const int count = range.end - range.begin, value = first_value + pair * kWarpValues;
  const auto copy = [&](int chain, int out) {  // chunks counted from range.begin
    if (chain < count)
      copy_forward_stage<keys, values>(m.stages[chain % 3], p, range, range.begin + chain, head, first_value);
    if (outputs && out >= 0 && out < count)
      copy_output_stage<keys>(m.outputs[out % 3], p, range, range.begin + out, head);
    cp_async_commit();
  };
  StateTile<keys> state;
  if (warp < 2) read_state<keys, values>(state, p, range, head, value);
  copy(0, -1);
  copy(1, 0);
  for (int c = 0; c <= count; ++c) {
    cp_async_wait<1>();
    __syncthreads();
    copy(c + 2, c + 1);
    if (warp < 2 && c < count) {
      const int chunk = range.begin + c;
      if (outputs && p.states && chunk > 0 && chunk % saved == 0) {
        float* to = head_state(p.states, (range.d.first + chunk * kRows) / kStateTokens, head, p.in);
        state.for_each(value, values, [&](float x, int at) { to[at] = x; });
      }
      forward_step<keys>(state, m.stages[c % 3], pair * kWarpValues, m.handoff[c % 2][pair]);
    }
    if (warp < 2 || c == 0) continue;
    Handoff<keys>& from = m.handoff[(c - 1) % 2][pair];
    if constexpr (outputs) {
      const ChunkRows rows = chunk_rows(range.d, range.begin + c - 1);
      output_step<keys>(from, m.outputs[(c - 1) % 3], p.out.at(rows.first, head) + value, p.out.stride, rows.length);
    } else {
      const std::int64_t item = std::int64_t{range.number + c - 1} * p.in.value_heads + head;
      store_handoff<keys>(from, p.scratch.s + (item * values + value) * keys,
                          p.scratch.u + (item * values + value) * kRows);
    }
  }
  cp_async_wait<0>();
  if (!outputs || warp >= 2 || !p.final) return;
  float* to = head_state(p.final, range.d.index, head, p.in);
  state.for_each(value, values, [&](float x, int at) { to[at] = x; });
}

}  // namespace ring::cuda
