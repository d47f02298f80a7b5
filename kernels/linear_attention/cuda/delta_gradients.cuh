#pragma once
// Gradients of one chunk of the gated delta rule in f32, for heads of any width: ChunkGradients of cpu/gated_delta.cpp.

#include "kernels/linear_attention/cuda/delta_chunk.cuh"

namespace ring::cuda {

// Destinations of the gradients. dq, dk [N,Hv,Dk] f32 are overwritten; the others accumulate, and may be undefined.
template <class T>
struct DeltaSinks {
  float *dq, *dk;
  HeadsOf3<T> dv;
  HeadsOf3<float> ddecay, dbeta;
  float beta_values, beta_gates;
};

// Gradients of the numbers of each row, and sums over the block. `products` are dot products of rows.
struct DeltaRowGradients {
  float beta[kMaxChunk], running[kMaxChunk], products[kMaxChunk], state[kWarps];
};

template <class T>
struct DeltaGradients {
  DeltaChunk<T>& chunk;
  DeltaRowGradients& row;
  float *q, *k, *t, *out, *u, *pairs, *scores;

  __device__ DeltaGradients(DeltaChunk<T>& c, DeltaRowGradients& gradients, DeltaMemory& m) : chunk(c), row(gradients) {
    const int keys = kMaxChunk * c.in.key_width, values = kMaxChunk * c.in.value_width;
    q = m.take(keys), k = m.take(keys), t = m.take(keys), out = m.take(values), u = m.take(values);
    pairs = m.take(kMaxChunk * kMaxChunk), scores = m.take(kMaxChunk * kMaxChunk);
  }

  // Replaces dstate, the gradient of the state after the chunk, by that of the state before. Call after chunk.load().
  __device__ void compute(const HeadsOf3<const T>& dout, const float* state, float* dstate) const {
    solve(dout, dstate);
    through_pairs();
    through_next_state(state, dstate);
    through_state(state, dstate);
  }

  // u = (I + A)^-T (P^T out + rest K dstate), the gradient of R.
  __device__ void solve(const HeadsOf3<const T>& dout, const float* dstate) const {
    const int n = chunk.length, keys = chunk.in.key_width, values = chunk.in.value_width;
    for_elements(n, values, [&](int i, int c) {
      out[i * values + c] = chunk.in.scale * to_float(dout.at(chunk.first + i, chunk.head)[c]);
    });
    for_elements(n, n, [&](int i, int j) {
      scores[i * kMaxChunk + j] = chunk.qk[i * kMaxChunk + j] * chunk.decays[i * kMaxChunk + j];
    });
    block_product<false, false>(n, values, keys, chunk.k, keys, dstate, values, u, values);
    __syncthreads();
    for_elements(n, values, [&](int i, int c) { u[i * values + c] *= chunk.row.rest[i]; });
    __syncthreads();
    block_product<true, false>(n, values, n, scores, kMaxChunk, out, values, u, values, 1, 1);
    __syncthreads();
    for (int c = static_cast<int>(threadIdx.x); c < values; c += kBlock)
      for (int i = n - 2; i >= 0; --i) {
        float sum = 0;
#pragma unroll 4
        for (int j = i + 1; j < n; ++j) sum += chunk.a[j * kMaxChunk + i] * u[j * values + c];
        u[i * values + c] -= sum;
      }
    __syncthreads();
  }

  // Gradients through A and P. Overwrites q, k and the gradients of each row.
  __device__ void through_pairs() const {
    const int n = chunk.length, keys = chunk.in.key_width, values = chunk.in.value_width;
    block_product<false, true>(n, n, values, u, values, chunk.u, values, pairs, kMaxChunk, -1);
    block_product<false, true>(n, n, values, out, values, chunk.u, values, scores, kMaxChunk);
    __syncthreads();
    for_elements(n, n, [&](int i, int j) {
      const int at = i * kMaxChunk + j;
      scores[at] *= chunk.decays[at];
      pairs[at] = j < i ? pairs[at] * chunk.decays[at] : 0.0f;
    });
    __syncthreads();
    for_warp_rows(n, [&](int i, int lane) {
      float beta = 0, running = 0;
      for (int j = lane; j < n; j += kWarp) {
        const int at = i * kMaxChunk + j, turned = j * kMaxChunk + i;
        if (j < i) {  // the exponent G_i - G_i is always 0
          beta += pairs[at] * chunk.kk[at];
          running += pairs[at] * chunk.kk[at] * chunk.row.rate[i] + scores[at] * chunk.qk[at];
        } else if (j > i) {
          running -= pairs[turned] * chunk.kk[turned] * chunk.row.rate[j] + scores[turned] * chunk.qk[turned];
        }
      }
      beta = warp_sum(beta), running = warp_sum(running);
      if (lane == 0) row.beta[i] = beta, row.running[i] = running;
    });
    __syncthreads();
    for_elements(n, n, [&](int i, int j) { pairs[i * kMaxChunk + j] *= chunk.row.rate[i]; });
    __syncthreads();
    block_product<false, false>(n, keys, n, scores, kMaxChunk, chunk.k, keys, q, keys);
    block_product<true, false>(n, keys, n, scores, kMaxChunk, chunk.q, keys, k, keys);
    block_product<false, false>(n, keys, n, pairs, kMaxChunk, chunk.k, keys, k, keys, 1, 1);
    block_product<true, false>(n, keys, n, pairs, kMaxChunk, chunk.k, keys, k, keys, 1, 1);
  }

  // Sets products[i] = x_i . y_i for rows of `width`.
  __device__ void dot_rows(const float* x, const float* y, int width) const {
    for_warp_rows(chunk.length, [&](int i, int lane) {
      const float sum = warp_dot(x + i * width, y + i * width, width, lane);
      if (lane == 0) row.products[i] = sum;
    });
    __syncthreads();
  }

  // Gradients through the state after the chunk: of k, and of the decays.
  __device__ void through_next_state(const float* state, const float* dstate) const {
    const int n = chunk.length, keys = chunk.in.key_width, values = chunk.in.value_width;
    block_product<false, true>(n, keys, values, chunk.u, values, dstate, values, t, keys);
    float sum = 0;
    for (int i = static_cast<int>(threadIdx.x); i < keys * values; i += kBlock) sum += state[i] * dstate[i];
    sum = warp_sum(sum);
    if (threadIdx.x % kWarp == 0) row.state[threadIdx.x / kWarp] = sum;
    __syncthreads();
    for_elements(n, keys, [&](int i, int c) { k[i * keys + c] += chunk.row.rest[i] * t[i * keys + c]; });
    dot_rows(chunk.k, t, keys);
    if (threadIdx.x == 0) {
      float last = 0;
      for (int w = 0; w < kWarps; ++w) last += row.state[w];
      last *= chunk.last_decay();
      for (int i = 0; i < n; ++i) {
        const float moved = chunk.row.rest[i] * row.products[i];
        last += moved;
        row.running[i] -= moved;
      }
      row.running[n - 1] += last;
    }
    __syncthreads();
  }

  // Gradients through the state before the chunk: of q, k, values and gates, and of the state. Turns u into the
  // gradient of v, and overwrites `out`.
  __device__ void through_state(const float* state, float* dstate) const {
    const int n = chunk.length, keys = chunk.in.key_width, values = chunk.in.value_width;
    const float decay = chunk.last_decay();
    for_elements(n, values, [&](int i, int c) { out[i * values + c] *= chunk.row.grow[i]; });
    for (int i = static_cast<int>(threadIdx.x); i < keys * values; i += kBlock) dstate[i] *= decay;
    __syncthreads();
    block_product<false, true>(n, keys, values, out, values, state, values, t, keys);
    block_product<true, false>(keys, values, n, chunk.q, keys, out, values, dstate, values, 1, 1);
    __syncthreads();
    for_elements(n, keys, [&](int i, int c) { q[i * keys + c] += t[i * keys + c]; });
    dot_rows(t, chunk.q, keys);
    for_warp_rows(n, [&](int i, int lane) {
      float of_value = 0, of_state = 0;
      const T* v = chunk.in.v.at(chunk.first + i, chunk.head);
      const float rate = chunk.row.rate[i], grow = chunk.row.grow[i];
      for (int c = lane; c < values; c += kWarp) {
        float& du = u[i * values + c];
        of_value += du * to_float(v[c]);
        of_state += du * chunk.ks[i * values + c];
        du *= rate;
        out[i * values + c] = -grow * du;
      }
      of_value = warp_sum(of_value), of_state = grow * warp_sum(of_state);
      if (lane != 0) return;
      row.beta[i] += of_value - of_state;
      row.running[i] += row.products[i] - rate * of_state;
    });
    __syncthreads();
    block_product<false, true>(n, keys, values, out, values, state, values, k, keys, 1, 1);
    block_product<true, false>(keys, values, n, chunk.k, keys, out, values, dstate, values, 1, 1);
    __syncthreads();
  }

  // Stores the gradient of x, given that of y = x / |x|: dx = (dy - y (y . dy)) / |x|.
  __device__ void store_unnormalised(float* to, const float* dy, const float* y, const float* rnorm) const {
    const int keys = chunk.in.key_width;
    for_warp_rows(chunk.length, [&](int i, int lane) {
      const float *dyi = dy + i * keys, *yi = y + i * keys, along = warp_dot(dyi, yi, keys, lane);
      float* x = to + ((chunk.first + i) * chunk.in.value_heads + chunk.head) * keys;
      for (int c = lane; c < keys; c += kWarp) x[c] = rnorm[i] * (dyi[c] - yi[c] * along);
    });
  }

  __device__ void store(const DeltaSinks<T>& to) const {
    store_unnormalised(to.dq, q, chunk.q, chunk.row.q_rnorm);
    store_unnormalised(to.dk, k, chunk.k, chunk.row.k_rnorm);
    const int values = chunk.in.value_width;
    const auto add = [](auto& at, float factor, float value) {
      at = from_float<std::remove_reference_t<decltype(at)>>(factor == 0 ? value : factor * to_float(at) + value);
    };
    if (to.dv.data)
      for_elements(chunk.length, values, [&](int i, int c) {
        add(to.dv.at(chunk.first + i, chunk.head)[c], to.beta_values, u[i * values + c]);
      });
    if (threadIdx.x == 0) {
      float sum = 0;
      for (int i = chunk.length - 1; i >= 0; --i) {
        sum += row.running[i];
        if (to.ddecay.data) add(*to.ddecay.at(chunk.first + i, chunk.head), to.beta_gates, sum);
        if (to.dbeta.data) add(*to.dbeta.at(chunk.first + i, chunk.head), to.beta_gates, row.beta[i]);
      }
    }
    __syncthreads();
  }
};

}  // namespace ring::cuda
