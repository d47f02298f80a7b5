#pragma once
// The recurrence of the gradients of states, from the last chunk of a document to the first (delta_recurrence.cuh).

#include "kernels/linear_attention/cuda/delta_recurrence.cuh"

namespace ring::cuda {

// A chunk's operands for the chain, and for the other warps.
template <int keys>
struct alignas(16) ReverseStage {
  Bf16 k[kRows * (keys + kPadding)], t[kSquare];
  float numbers[kRecurrenceNumbers * kRows];
};
template <int keys>
struct alignas(16) LocalStage {
  Bf16 q[kRows * (keys + kPadding)], dout[kRows * (kBlockValues + kPadding)], p[kSquare];
  float grow_q[kRows];
};
// The parts of the gradients of U^T and S^T that do not depend on the chain, as accumulators of each lane.
template <int keys>
struct LocalGradients {
  float4 u[kRows / 8][kWarp], s[keys / 8][kWarp];
};
template <int keys>
struct ReverseMemory {
  ReverseStage<keys> stages[2];
  LocalStage<keys> local_stages[3];
  LocalGradients<keys> local[2][2];  // of even and odd steps, for each chain warp
  Handoff<keys> handoff[2][2];
};

struct DeltaReverse {
  DeltaInputs<Bf16> in;
  HeadsOf3<const Bf16> dout;
  DeltaScratch scratch;
  float *dfinal, *dinitial;  // null if undefined
  float beta_initial;
};

// Multiplies the pairs of a fragment of A by the numbers of their columns from `first` on.
__device__ inline void scale_fragment(Fragment& a, const float* numbers, int first) {
#pragma unroll
  for (int m = 0; m < 2; ++m) {
    const float2 factor = column_numbers(numbers, first + m * 8);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      std::uint32_t& two = a[2 * m + half];
      two = pack_bf16(low_half(two) * factor.x, high_half(two) * factor.y);
    }
  }
}

// Computes P^T dout and the outputs' part in the gradient of the state.
template <int keys>
__device__ inline void local_step(const LocalStage<keys>& in, int first_value, LocalGradients<keys>& to) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  float u[kRows / 8][4] = {};
  StateTile<keys> state;
#pragma unroll
  for (int k = 0; k < kRows / 16; ++k) {
    Fragment dout;
    load_a_transposed(dout, in.dout, kBlockValues + kPadding, first_value, k * 16);
#pragma unroll
    for (int n = 0; n <= k; ++n) {  // P is lower triangular
      Fragment b;
      load_b_transposed(b, in.p, kSquareStride, n * 16, k * 16);
      mma_pair(u + 2 * n, dout, b);
    }
    scale_fragment(dout, in.grow_q, k * 16);
    add_rows<keys>(state.c, dout, in.q, k * 16);
  }
#pragma unroll
  for (int n = 0; n < kRows / 8; ++n) to.u[n][lane] = make_float4(u[n][0], u[n][1], u[n][2], u[n][3]);
#pragma unroll
  for (int n = 0; n < keys / 8; ++n)
    to.s[n][lane] = make_float4(state.c[n][0], state.c[n][1], state.c[n][2], state.c[n][3]);
}

// Computes the gradient of U in u, rest K dS + P^T dout, and adds everything to the gradient of the state but what
// comes from R.
template <int keys>
__device__ inline void gradient_of_u(float (&u)[kRows / 8][4], StateTile<keys>& state, const ReverseStage<keys>& in,
                                     const LocalGradients<keys>& local, Handoff<keys>& to) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const float last = number_row(in.numbers, DeltaNumber::last)[0];
  Fragment s[keys / 16];
  state.round(s, to.s);
  multiply_rows<keys>(u, s, in.k);
#pragma unroll
  for (int n = 0; n < keys / 8; ++n) {
    const float4 add = local.s[n][lane];
    float* c = state.c[n];
    c[0] = last * c[0] + add.x, c[1] = last * c[1] + add.y, c[2] = last * c[2] + add.z, c[3] = last * c[3] + add.w;
  }
#pragma unroll
  for (int n = 0; n < kRows / 8; ++n) {
    const float2 rest = column_numbers(number_row(in.numbers, DeltaNumber::rest_k), n * 8);
    const float4 add = local.u[n][lane];
    u[n][0] = rest.x * u[n][0] + add.x, u[n][1] = rest.y * u[n][1] + add.y;
    u[n][2] = rest.x * u[n][2] + add.z, u[n][3] = rest.y * u[n][3] + add.w;
  }
}

// Replaces the gradient of the state after the chunk by that of the state before, and leaves the former and the
// gradient of R^T in `to`.
template <int keys>
__device__ inline void reverse_step(StateTile<keys>& state, const ReverseStage<keys>& in,
                                    const LocalGradients<keys>& local, Handoff<keys>& to) {
  float r[kRows / 8][4] = {};
  {
    float u[kRows / 8][4] = {};
    gradient_of_u<keys>(u, state, in, local, to);
#pragma unroll
    for (int k = kRows / 16 - 1; k >= 0; --k) {
      Fragment a;
      to_a(a, u + 2 * k);
#pragma unroll
      for (int n = 0; n <= k; ++n) {  // T is lower triangular
        Fragment b;
        load_b_transposed(b, in.t, kSquareStride, n * 16, k * 16);
        mma_pair(r + 2 * n, a, b);
      }
    }
  }
#pragma unroll
  for (int n = 0; n < kRows / 16; ++n) {
    Fragment a;
    to_a(a, r + 2 * n);
    store_a(a, to.u, kSquareStride, 0, n * 16);
#pragma unroll
    for (int m = 0; m < 2; ++m) {
      const float2 grow = column_numbers(number_row(in.numbers, DeltaNumber::grow_k), n * 16 + m * 8),
                   rate = column_numbers(number_row(in.numbers, DeltaNumber::rate), n * 16 + m * 8);
#pragma unroll
      for (int half = 0; half < 2; ++half)
        r[2 * n + m][2 * half] *= -rate.x * grow.x, r[2 * n + m][2 * half + 1] *= -rate.y * grow.y;
    }
    to_a(a, r + 2 * n);
    add_rows<keys>(state.c, a, in.k, n * 16);
  }
}

// Requests copies of chunk c.
template <int keys>
__device__ inline void copy_reverse_stage(ReverseStage<keys>& to, const DeltaReverse& p, const ChunkRange& range, int c,
                                          int head) {
  constexpr int n = kRecurrenceThreads;
  const ChunkRows rows = chunk_rows(range.d, c);
  const std::int64_t item = std::int64_t{range.number + c} * p.in.value_heads + head;
  copy_rows<n, kRows, keys>(to.k, p.in.k.at(rows.first, p.in.key_head(head)), p.in.k.stride, rows.length);
  copy_rows<n, kRows, kRows>(to.t, p.scratch.t + item * kRows * kRows, kRows, kRows);
  copy_numbers<n, kRecurrenceNumbers * kRows>(to.numbers, p.scratch.numbers + item * kNumbers * kRows);
}
template <int keys>
__device__ inline void copy_local_stage(LocalStage<keys>& to, const DeltaReverse& p, const ChunkRange& range, int c,
                                        int head, int first_value) {
  constexpr int n = kRecurrenceThreads;
  const ChunkRows rows = chunk_rows(range.d, c);
  const std::int64_t item = std::int64_t{range.number + c} * p.in.value_heads + head;
  copy_rows<n, kRows, keys>(to.q, p.in.q.at(rows.first, p.in.key_head(head)), p.in.q.stride, rows.length);
  copy_rows<n, kRows, kBlockValues>(to.dout, p.dout.at(rows.first, head) + first_value, p.dout.stride, rows.length);
  copy_rows<n, kRows, kRows>(to.p, p.scratch.p + item * kRows * kRows, kRows, kRows);
  copy_numbers<n, kRows>(to.grow_q, number_row(p.scratch.numbers + item * kNumbers * kRows, DeltaNumber::grow_q));
}

// Brings the chain's operands of chunk c, which are copied only one step ahead, closer. Called by 64 threads.
template <int keys>
__device__ inline void prefetch_reverse_stage(const DeltaReverse& p, const ChunkRange& range, int c, int head) {
  const int row = static_cast<int>(threadIdx.x) % kRows;
  const ChunkRows rows = chunk_rows(range.d, c);
  const std::int64_t item = std::int64_t{range.number + c} * p.in.value_heads + head;
  prefetch_l2(p.scratch.t + (item * kRows + row) * kRows);
  if (row >= rows.length) return;
  const Bf16* k = p.in.k.at(rows.first + row, p.in.key_head(head));
#pragma unroll
  for (int c0 = 0; c0 < keys; c0 += 64) prefetch_l2(k + c0);
}

// In step s, chain warps compute the chunk that is s before the last, and the other warps prepare the next step and
// store the results of the previous one. Step -1 only prepares.
template <int keys, int values>
__global__ void __launch_bounds__(kRecurrenceThreads)
    delta_reverse(DeltaReverse p, const __grid_constant__ Documents<MmaDocument> documents) {
  extern __shared__ __align__(16) unsigned char reverse_memory[];
  auto& m = *reinterpret_cast<ReverseMemory<keys>*>(reverse_memory);
  const int first_value = static_cast<int>(blockIdx.x) * kBlockValues, head = static_cast<int>(blockIdx.y);
  const int warp = static_cast<int>(threadIdx.x) / kWarp, pair = warp % 2;
  const ChunkRange range = whole_document(documents, static_cast<int>(blockIdx.z));
  const int count = range.end, value = first_value + pair * kWarpValues;
  const auto copy_chain = [&](int step) {
    if (step >= 0 && step < count) copy_reverse_stage<keys>(m.stages[step % 2], p, range, count - 1 - step, head);
    cp_async_commit();
  };
  const auto copy_local = [&](int step) {
    if (step < count) copy_local_stage<keys>(m.local_stages[step % 3], p, range, count - 1 - step, head, first_value);
    cp_async_commit();
  };
  StateTile<keys> state;
  if (const float* from = head_state(p.dfinal, range.d.index, head, p.in); warp < 2 && from)
    state.for_each(value, values, [&](float& x, int at) { x = from[at]; });
  copy_local(0);
  copy_chain(-1);
  copy_local(1);
  for (int step = -1; step <= count; ++step) {
    cp_async_wait<1>();
    __syncthreads();
    copy_chain(step + 1);
    copy_local(step + 3);
    if (warp < 2) {
      if (step >= 0 && step < count)
        reverse_step<keys>(state, m.stages[step % 2], m.local[step % 2][pair], m.handoff[step % 2][pair]);
      continue;
    }
    if (step + 3 < count) prefetch_reverse_stage<keys>(p, range, count - 4 - step, head);
    if (step + 1 < count)
      local_step<keys>(m.local_stages[(step + 1) % 3], pair * kWarpValues, m.local[(step + 1) % 2][pair]);
    if (step < 1) continue;
    const std::int64_t item = std::int64_t{range.number + count - step} * p.in.value_heads + head;
    store_handoff<keys>(m.handoff[(step - 1) % 2][pair], p.scratch.ds + (item * values + value) * keys,
                        p.scratch.dr + (item * values + value) * kRows);
  }
  cp_async_wait<0>();
  float* to = head_state(p.dinitial, range.d.index, head, p.in);
  if (warp >= 2 || !to) return;
  state.for_each(value, values,
                 [&](float x, int at) { to[at] = p.beta_initial == 0 ? x : p.beta_initial * to[at] + x; });
}

}  // namespace ring::cuda
