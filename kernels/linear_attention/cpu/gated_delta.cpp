// The gated delta rule in chunks (WY form: Yang et al. 2024, "Parallelizing Linear Transformers with the Delta Rule",
// section 3). With G the running sum of g within a chunk and S the state before it, the recurrence is
//   (I + A) U = beta (V - exp(G) K S),   A[i,j] = beta_i exp(G_i - G_j) k_i.k_j       for j < i
//   out = scale (exp(G) Q S + P U),      P[i,j] = exp(G_i - G_j) q_i.k_j              for j <= i
//   S' = exp(G_last) S + (exp(G_last - G) K)^T U
// Row t of Q, K and V belongs to token t of the chunk. Row t of U is the vector that token t adds to the state under
// its key. The triangular system is solved by substitution. All exponents are at most 0. A task computes the value
// heads of one key head of one document one after another, so dq and dk are summed in the same order for any number of
// threads.

#include "kernels/linear_attention/gated_delta.h"

#include <algorithm>
#include <cmath>

#include "kernels/attention/attention.h"
#include "kernels/cpu/gemm.h"
#include "kernels/cpu/rows.h"
#include "kernels/cpu/vec.h"

namespace ring::cpu {
namespace {

constexpr std::int64_t kMaxChunk = kDeltaChunk, kChunksPerState = kStateTokens / kDeltaChunk;

// The rows of one head of a tensor [N,H,D] or [N,H]; data is null if the tensor is undefined.
struct HeadOf {
  float* data = nullptr;
  std::int64_t stride = 0;

  HeadOf() = default;
  HeadOf(const Tensor& t, std::int64_t head) {
    if (!t.defined()) return;
    data = t.data<float>() + head * t.stride(1);
    stride = t.stride(0);
  }
  float* operator[](std::int64_t row) const { return data + row * stride; }
  explicit operator bool() const { return data != nullptr; }
};

// Hands out parts of a thread's temporary memory.
struct Memory {
  float* next;
  float* take(std::int64_t floats) { return std::exchange(next, next + floats); }
};

// C [m,n] = alpha op(A) op(B) + beta C
void product(bool ta, bool tb, std::int64_t m, std::int64_t n, std::int64_t k, const float* a, std::int64_t lda,
             const float* b, std::int64_t ldb, float* c, std::int64_t ldc, float alpha = 1, float beta = 0) {
  gemm({ta, tb, m, n, k, a, lda, b, ldb, c, ldc, alpha, beta});
}

void scale_row(float* x, float factor, std::int64_t n) {
  for (std::int64_t i = 0; i < n; ++i) x[i] *= factor;
}
void add_scaled(float* to, const float* x, float factor, std::int64_t n) {
#pragma GCC ivdep
  for (std::int64_t i = 0; i < n; ++i) to[i] += factor * x[i];
}

// Inputs of one value head, with q and k of its key head.
struct HeadRows {
  HeadOf q, k, v, g, beta;
};

// One chunk of one head, with L = `length` tokens. The head of this file explains the letters. Matrices are contiguous.
struct Chunk {
  std::int64_t key_width, value_width;
  float eps;
  std::int64_t length = 0;
  float *q, *k;                                      // [L,Dk], divided by their norms
  float *u, *ks;                                     // [L,Dv]: U, and K S
  float *a, *decays;                                 // [L,L]: A, and exp(G_i - G_j) for j <= i
  float *kk, *qk;                                    // [L,L]: K K^T and Q K^T
  float *q_rnorm, *k_rnorm, *grow, *rest, *running;  // [L]: 1 / norms, exp(G), exp(G_last - G), G

  Chunk(Memory& m, std::int64_t keys, std::int64_t values, float norm_eps)
      : key_width(keys), value_width(values), eps(norm_eps) {
    for (float** x : {&q, &k}) *x = m.take(kMaxChunk * keys);
    for (float** x : {&u, &ks}) *x = m.take(kMaxChunk * values);
    for (float** x : {&a, &decays, &kk, &qk}) *x = m.take(kMaxChunk * kMaxChunk);
    for (float** x : {&q_rnorm, &k_rnorm, &grow, &rest, &running}) *x = m.take(kMaxChunk);
  }

  float last_decay() const { return grow[length - 1]; }

  void normalise(const HeadOf& rows, std::int64_t first, float* to, float* rnorm) const {
    for (std::int64_t i = 0; i < length; ++i) {
      const float* in = rows[first + i];
      const float r = rnorm[i] = 1.0f / std::sqrt(dot(in, in, key_width) + eps);
      float* out = to + i * key_width;
      for (std::int64_t c = 0; c < key_width; ++c) out[c] = in[c] * r;
    }
  }

  // Reads rows [first, first + count) and computes all members except `qk`. state: S.
  void load(const HeadRows& in, std::int64_t first, std::int64_t count, const float* state) {
    length = count;
    normalise(in.q, first, q, q_rnorm);
    normalise(in.k, first, k, k_rnorm);
    float sum = 0;
    for (std::int64_t i = 0; i < length; ++i) {
      running[i] = sum += *in.g[first + i];
      grow[i] = std::exp(sum);
    }
    for (std::int64_t i = 0; i < length; ++i) rest[i] = std::exp(sum - running[i]);
    for (std::int64_t i = 0; i < length; ++i)
      for (std::int64_t j = 0; j <= i; ++j) decays[i * kMaxChunk + j] = exp_fast(running[i] - running[j]);
    product(false, true, length, length, key_width, k, key_width, k, key_width, kk, kMaxChunk);
    product(false, false, length, value_width, key_width, k, key_width, state, value_width, ks, value_width);
    for (std::int64_t i = 0; i < length; ++i) {
      const float beta = *in.beta[first + i], *v = in.v[first + i];
      for (std::int64_t j = 0; j < i; ++j)
        a[i * kMaxChunk + j] = beta * decays[i * kMaxChunk + j] * kk[i * kMaxChunk + j];
      for (std::int64_t c = 0; c < value_width; ++c)
        u[i * value_width + c] = beta * (v[c] - grow[i] * ks[i * value_width + c]);
      for (std::int64_t j = 0; j < i; ++j)
        add_scaled(u + i * value_width, u + j * value_width, -a[i * kMaxChunk + j], value_width);
    }
  }

  // Computes `qk`. Call after load().
  void load_scores() const {
    product(false, true, length, length, key_width, q, key_width, k, key_width, qk, kMaxChunk);
  }

  // Stores the rows of the output. Destroys `qk` and `ks`.
  void write_output(const HeadOf& out, std::int64_t first, const float* state, float scale) const {
    for (std::int64_t i = 0; i < length; ++i)
      for (std::int64_t j = 0; j < length; ++j)
        qk[i * kMaxChunk + j] = j > i ? 0.0f : qk[i * kMaxChunk + j] * decays[i * kMaxChunk + j];
    product(false, false, length, value_width, key_width, q, key_width, state, value_width, ks, value_width);
    for (std::int64_t i = 0; i < length; ++i) {
      float* to = out[first + i];
      for (std::int64_t c = 0; c < value_width; ++c) to[c] = scale * grow[i] * ks[i * value_width + c];
    }
    product(false, false, length, value_width, length, qk, kMaxChunk, u, value_width, out[first], out.stride, scale, 1);
  }

  // Replaces the state before the chunk (S) by the state after it (S'). Destroys `k`.
  void advance(float* state) const {
    for (std::int64_t i = 0; i < length; ++i) scale_row(k + i * key_width, rest[i], key_width);
    product(true, false, key_width, value_width, length, k, key_width, u, value_width, state, value_width, 1,
            last_decay());
  }
};

std::int64_t state_floats(const Tensor& q, const Tensor& v) { return q.dim(2) * v.dim(2); }

// Returns a head's state in a tensor [documents or slots,Hv,Dk,Dv]; null if the tensor is undefined.
float* state_of(const Tensor& all, std::int64_t index, std::int64_t head) {
  if (!all.defined()) return nullptr;
  return all.data<float>() + (index * all.dim(1) + head) * all.dim(2) * all.dim(3);
}

void copy_or_clear(float* to, const float* from, std::int64_t n) {
  if (from)
    std::copy_n(from, n, to);
  else
    std::fill_n(to, n, 0.0f);
}

// Calls fn(document, key head, memory) for all documents and key heads.
template <class Args, class Fn>
void for_heads(const Args& args, bool backward, const ExecContext& ctx, const Fn& fn) {
  const std::int64_t floats = delta_floats(args.q.dim(2), args.v.dim(2), backward), key_heads = args.q.dim(1);
  ThreadPool& pool = ctx.stream.pool();
  const Tensor scratch = ctx.empty({pool.size() * floats});
  pool.parallel_for(std::ssize(args.documents) * key_heads, 1, [&](std::int64_t begin, std::int64_t end, int thread) {
    for (std::int64_t task = begin; task < end; ++task)
      fn(task / key_heads, task % key_heads, Memory{scratch.data<float>() + thread * floats});
  });
}

template <class Args>
HeadRows rows_of_heads(const Args& a, std::int64_t key_head, std::int64_t head) {
  return {{a.q, key_head}, {a.k, key_head}, {a.v, head}, {a.decay, head}, {a.beta, head}};
}

void run_head(const GatedDelta& a, std::int64_t document, std::int64_t key_head, std::int64_t head, Memory memory) {
  const Span& rows = a.documents[static_cast<std::size_t>(document)];
  const HeadRows in = rows_of_heads(a, key_head, head);
  const HeadOf out(a.out, head);
  const std::int64_t floats = state_floats(a.q, a.v);
  Chunk chunk(memory, a.q.dim(2), a.v.dim(2), a.eps);
  float* state = memory.take(floats);
  copy_or_clear(state, state_of(a.initial, document, head), floats);
  for (std::int64_t t = 0; t < rows.count; t += kMaxChunk) {
    const std::int64_t first = rows.first + t;
    if (a.states.defined() && t > 0 && t % kStateTokens == 0)
      std::copy_n(state, floats, state_of(a.states, first / kStateTokens, head));
    chunk.load(in, first, std::min(kMaxChunk, rows.count - t), state);
    chunk.load_scores();
    chunk.write_output(out, first, state, a.scale);
    chunk.advance(state);
  }
  if (a.final.defined()) std::copy_n(state, floats, state_of(a.final, document, head));
}

// Multiplies the rows that belong to no document by beta. If beta = 0, they become 0 even if they held NaN.
void scale_rows_outside(const Tensor& t, float beta, const std::vector<Span>& documents) {
  if (!t.defined() || beta == 1) return;
  const std::int64_t width = t.shape().size() == 3 ? t.dim(2) : 1;
  for_rows_outside(documents, t.dim(0), [&](std::int64_t first, std::int64_t count) {
    for (std::int64_t row = first; row < first + count; ++row)
      for (std::int64_t head = 0; head < t.dim(1); ++head)
        for (std::int64_t c = 0; c < width; ++c) {
          float& x = HeadOf(t, head)[row][c];
          x = beta == 0 ? 0 : beta * x;
        }
  });
}

void run_gated_delta(const GatedDelta& args, const ExecContext& ctx) {
  check(args);
  const std::int64_t group = args.v.dim(1) / args.q.dim(1);
  scale_rows_outside(args.out, 0, args.documents);
  for_heads(args, false, ctx, [&](std::int64_t document, std::int64_t key_head, const Memory& memory) {
    for (std::int64_t head = key_head * group; head < (key_head + 1) * group; ++head)
      run_head(args, document, key_head, head, memory);
  });
}

// Gradients of one chunk; `chunk` has the values of the forward. Letters: see the head of this file.
struct ChunkGradients {
  const Chunk& chunk;
  float *q, *k, *t;       // [L,Dk]: gradients of the normalised queries and keys; temporary
  float *out, *u;         // [L,Dv]: scale * dout; gradient of U, then of R = beta (V - exp(G) K S), then of V
  float *pairs, *scores;  // [L,L]: gradients of A and of P
  float *beta, *running;  // [L]: gradients of beta and of G

  ChunkGradients(Memory& m, const Chunk& c) : chunk(c) {
    for (float** x : {&q, &k, &t}) *x = m.take(kMaxChunk * c.key_width);
    for (float** x : {&out, &u}) *x = m.take(kMaxChunk * c.value_width);
    for (float** x : {&pairs, &scores}) *x = m.take(kMaxChunk * kMaxChunk);
    for (float** x : {&beta, &running}) *x = m.take(kMaxChunk);
  }

  std::int64_t length() const { return chunk.length; }
  std::int64_t keys() const { return chunk.key_width; }
  std::int64_t values() const { return chunk.value_width; }
  float* key_row(float* x, std::int64_t i) const { return x + i * keys(); }
  float* value_row(float* x, std::int64_t i) const { return x + i * values(); }

  void read_output(const HeadOf& dout, std::int64_t first, float scale) const {
    for (std::int64_t i = 0; i < length(); ++i)
      for (std::int64_t c = 0; c < values(); ++c) value_row(out, i)[c] = scale * dout[first + i][c];
    std::fill_n(beta, length(), 0.0f);
    std::fill_n(running, length(), 0.0f);
  }

  // Computes the gradient of R: u = (I + A)^-T (P^T out + rest K dstate), where dstate is the gradient of S'.
  void solve(const float* dstate) const {
    product(false, false, length(), values(), keys(), chunk.k, keys(), dstate, values(), u, values());
    for (std::int64_t i = 0; i < length(); ++i) {
      scale_row(value_row(u, i), chunk.rest[i], values());
      for (std::int64_t j = 0; j < length(); ++j)
        scores[i * kMaxChunk + j] = j > i ? 0.0f : chunk.qk[i * kMaxChunk + j] * chunk.decays[i * kMaxChunk + j];
    }
    product(true, false, length(), values(), length(), scores, kMaxChunk, out, values(), u, values(), 1, 1);
    for (std::int64_t i = length() - 1; i >= 0; --i)
      for (std::int64_t j = i + 1; j < length(); ++j)
        add_scaled(value_row(u, i), value_row(u, j), -chunk.a[j * kMaxChunk + i], values());
  }

  // Backpropagates through A and P. Overwrites `q` and `k` with this part of their gradients, to which through_states()
  // adds the rest. Adds to `beta` and `running`.
  void through_pairs(const HeadRows& in, std::int64_t first) const {
    product(false, true, length(), length(), values(), u, values(), chunk.u, values(), pairs, kMaxChunk, -1);
    product(false, true, length(), length(), values(), out, values(), chunk.u, values(), scores, kMaxChunk);
    for (std::int64_t i = 0; i < length(); ++i) {
      const float rate = *in.beta[first + i];
      for (std::int64_t j = 0; j < kMaxChunk && j < length(); ++j) {
        const std::int64_t at = i * kMaxChunk + j;
        const float decay = j > i ? 0.0f : chunk.decays[at];
        scores[at] = j > i ? 0.0f : scores[at] * decay;
        pairs[at] = j >= i ? 0.0f : pairs[at] * decay;
        const float of_a = pairs[at] * chunk.kk[at];
        if (j < i) beta[i] += of_a;
        pairs[at] *= rate;
        if (j >= i) continue;  // the exponent G_i - G_i is always 0
        const float both = of_a * rate + scores[at] * chunk.qk[at];
        running[i] += both;
        running[j] -= both;
      }
    }
    product(false, false, length(), keys(), length(), scores, kMaxChunk, chunk.k, keys(), q, keys());
    product(true, false, length(), keys(), length(), scores, kMaxChunk, chunk.q, keys(), k, keys());
    product(false, false, length(), keys(), length(), pairs, kMaxChunk, chunk.k, keys(), k, keys(), 1, 1);
    product(true, false, length(), keys(), length(), pairs, kMaxChunk, chunk.k, keys(), k, keys(), 1, 1);
  }

  // Backpropagates through all products with S, and through S'. Replaces dstate, the gradient of S', by the gradient of
  // S. Replaces `u` by the gradient of V, and destroys `out`.
  void through_states(const HeadRows& in, std::int64_t first, const float* state, float* dstate) const {
    product(false, true, length(), keys(), values(), chunk.u, values(), dstate, values(), t, keys());
    const std::int64_t last = length() - 1;
    running[last] += chunk.last_decay() * dot(state, dstate, keys() * values());
    for (std::int64_t i = 0; i < length(); ++i) {
      add_scaled(key_row(k, i), key_row(t, i), chunk.rest[i], keys());
      const float moved = chunk.rest[i] * dot(key_row(chunk.k, i), key_row(t, i), keys());
      running[last] += moved;
      running[i] -= moved;
    }
    for (std::int64_t i = 0; i < length(); ++i) scale_row(value_row(out, i), chunk.grow[i], values());
    product(false, true, length(), keys(), values(), out, values(), state, values(), t, keys());
    for (std::int64_t i = 0; i < length(); ++i) {
      add_scaled(key_row(q, i), key_row(t, i), 1, keys());
      running[i] += dot(key_row(t, i), key_row(chunk.q, i), keys());
    }
    product(true, false, keys(), values(), length(), chunk.q, keys(), out, values(), dstate, values(), 1,
            chunk.last_decay());
    through_values(in, first);
    product(false, true, length(), keys(), values(), out, values(), state, values(), k, keys(), 1, 1);
    product(true, false, keys(), values(), length(), chunk.k, keys(), out, values(), dstate, values(), 1, 1);
  }

  // Backpropagates through R = beta (V - Y), where Y = exp(G) K S. Adds dR (V - Y) to `beta`. Replaces `u`, which holds
  // dR, by dV = beta dR, and `out` by exp(G) dY = -exp(G) dV.
  void through_values(const HeadRows& in, std::int64_t first) const {
    for (std::int64_t i = 0; i < length(); ++i) {
      float *du = value_row(u, i), *to = value_row(out, i);
      const float *v = in.v[first + i], *ks = value_row(chunk.ks, i), rate = *in.beta[first + i], grow = chunk.grow[i];
      const float of_state = grow * dot(du, ks, values());
      beta[i] += dot(du, v, values()) - of_state;
      running[i] -= rate * of_state;
      for (std::int64_t c = 0; c < values(); ++c) {
        du[c] *= rate;
        to[c] = -grow * du[c];
      }
    }
  }
};

// Destinations of the gradients of one value head.
struct HeadSinks {
  HeadOf q, k, v, g, beta;
  float of_keys, of_values, of_gates;  // factors on the present contents of q and k, of v, of g and beta
};

void store(float* to, float factor, float value) { *to = factor == 0 ? value : factor * *to + value; }

// Stores the gradient of x, given that of y = x / |x|: dx = (dy - y (y . dy)) / |x|.
void store_unnormalised(const HeadOf& to, std::int64_t first, float factor, const float* dy, const float* y,
                        const float* rnorm, const Chunk& c) {
  if (!to) return;
  for (std::int64_t i = 0; i < c.length; ++i) {
    const float *dyi = dy + i * c.key_width, *yi = y + i * c.key_width, along = dot(dyi, yi, c.key_width);
    for (std::int64_t n = 0; n < c.key_width; ++n)
      store(to[first + i] + n, factor, rnorm[i] * (dyi[n] - yi[n] * along));
  }
}

void store_gradients(const ChunkGradients& d, const HeadSinks& to, std::int64_t first) {
  const Chunk& c = d.chunk;
  store_unnormalised(to.q, first, to.of_keys, d.q, c.q, c.q_rnorm, c);
  store_unnormalised(to.k, first, to.of_keys, d.k, c.k, c.k_rnorm, c);
  float sum = 0;
  for (std::int64_t i = c.length - 1; i >= 0; --i) {
    sum += d.running[i];
    if (to.g) store(to.g[first + i], to.of_gates, sum);
    if (to.beta) store(to.beta[first + i], to.of_gates, d.beta[i]);
    if (!to.v) continue;
    for (std::int64_t n = 0; n < c.value_width; ++n) store(to.v[first + i] + n, to.of_values, d.value_row(d.u, i)[n]);
  }
}

void run_head_backward(const GatedDeltaBackward& a, std::int64_t document, std::int64_t key_head, std::int64_t head,
                       Memory memory) {
  const Span& rows = a.documents[static_cast<std::size_t>(document)];
  const HeadRows in = rows_of_heads(a, key_head, head);
  const HeadOf dout(a.dout, head);
  const bool first_of_group = head % (a.v.dim(1) / a.q.dim(1)) == 0;
  const HeadSinks sinks{{a.dq, key_head}, {a.dk, key_head}, {a.dv, head},
                        {a.ddecay, head}, {a.dbeta, head},  first_of_group ? a.beta_qkv : 1.0f,
                        a.beta_qkv,       a.beta_gates};
  const std::int64_t floats = state_floats(a.q, a.v);
  Chunk chunk(memory, a.q.dim(2), a.v.dim(2), a.eps);
  const ChunkGradients gradients(memory, chunk);
  float *dstate = memory.take(floats), *states = memory.take((1 + kChunksPerState) * floats);
  copy_or_clear(dstate, state_of(a.dfinal, document, head), floats);
  const auto length_at = [&](std::int64_t t) { return std::min(kMaxChunk, rows.count - t); };
  const std::int64_t last = rows.count == 0 ? -1 : (rows.count - 1) / kStateTokens * kStateTokens;
  for (std::int64_t begin = last; begin >= 0; begin -= kStateTokens) {
    const float* saved =
        begin > 0 ? state_of(a.states, (rows.first + begin) / kStateTokens, head) : state_of(a.initial, document, head);
    const std::int64_t end = std::min<std::int64_t>(rows.count, begin + kStateTokens);
    copy_or_clear(states, saved, floats);
    float* state = states;
    for (std::int64_t t = begin; t + kMaxChunk < end; t += kMaxChunk) {  // states before the other chunks
      chunk.load(in, rows.first + t, kMaxChunk, state);
      std::copy_n(state, floats, state + floats);
      chunk.advance(state += floats);
    }
    for (std::int64_t t = begin + (end - begin - 1) / kMaxChunk * kMaxChunk; t >= begin; t -= kMaxChunk) {
      const std::int64_t row = rows.first + t;
      chunk.load(in, row, length_at(t), state);
      chunk.load_scores();
      gradients.read_output(dout, row, a.scale);
      gradients.solve(dstate);
      gradients.through_pairs(in, row);
      gradients.through_states(in, row, state, dstate);
      store_gradients(gradients, sinks, row);
      state -= floats;
    }
  }
  if (float* to = state_of(a.dinitial, document, head))
    for (std::int64_t i = 0; i < floats; ++i) store(to + i, a.beta_initial, dstate[i]);
}

void run_gated_delta_backward(const GatedDeltaBackward& args, const ExecContext& ctx) {
  check(args);
  const std::int64_t group = args.v.dim(1) / args.q.dim(1);
  for (const Tensor& t : {args.dq, args.dk, args.dv}) scale_rows_outside(t, args.beta_qkv, args.documents);
  for (const Tensor& t : {args.ddecay, args.dbeta}) scale_rows_outside(t, args.beta_gates, args.documents);
  for_heads(args, true, ctx, [&](std::int64_t document, std::int64_t key_head, const Memory& memory) {
    for (std::int64_t head = key_head * group; head < (key_head + 1) * group; ++head)
      run_head_backward(args, document, key_head, head, memory);
  });
}

const bool added[] = {gated_delta_kernel.add(Backend::cpu, {"chunks", run_gated_delta}),
                      gated_delta_backward_kernel.add(Backend::cpu, {"chunks", run_gated_delta_backward})};

}  // namespace
}  // namespace ring::cpu
