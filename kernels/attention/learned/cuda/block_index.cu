// The block indexer. It works on pairs of blocks, not of tokens, so its cost is small compared with attention.

#include "kernels/attention/learned/block_index.h"

#include <algorithm>
#include <climits>
#include <utility>

#include "kernels/attention/blocks.h"
#include "kernels/attention/cuda/documents.cuh"
#include "kernels/cuda/launch.h"

namespace ring::cuda {
namespace {

constexpr int kChunk = 64;  // blocks per step of a gradient kernel

// The indexer's projections, laid out as in IndexShape. `weights`: first column of the scored heads' weights.
template <class T>
struct Projected {
  const T* data;
  int width, heads, dim, count, weights;
  float scale;

  __device__ const T* query(std::int64_t row) const { return data + row * width; }
  __device__ const T* key(std::int64_t row) const { return data + row * width + heads * dim; }
  __device__ const T* weight(std::int64_t row) const { return data + row * width + weights; }
  __device__ int asked() const { return heads * dim + count * heads; }
  // Loads a row's queries, followed by its weights. All threads of the block must call it.
  __device__ void load(std::int64_t row, float* to) const {
    for (int c = static_cast<int>(threadIdx.x); c < asked(); c += kBlock)
      to[c] = to_float(c < heads * dim ? query(row)[c] : weight(row)[c - heads * dim]);
  }
};

template <class T>
Projected<T> projected_of(const Tensor& t, const IndexShape& s) {
  return {device_data<T>(t),
          static_cast<int>(s.width()),
          static_cast<int>(s.heads),
          static_cast<int>(s.dim),
          static_cast<int>(s.count),
          static_cast<int>(s.weights() + s.first_head * s.heads),
          s.scale()};
}

template <class T>
__device__ float dot_product(const float* q, const T* k, int dim) {
  float sum = 0;
  for (int c = 0; c < dim; ++c) sum += q[c] * to_float(k[c]);
  return sum;
}

// Distance biases, starting with those of the first scored head. `data` is null if there are no biases.
template <class T>
struct Biases {
  const T* data;
  int buckets;

  __device__ float of(int g, int distance) const {
    return data ? kDistanceScale * to_float(data[g * buckets + distance_bucket(distance, buckets)]) : 0;
  }
};

template <class T>
Biases<T> biases_of(const Tensor& t, const IndexShape& s) {
  if (!t.defined()) return {nullptr, 0};
  return {device_data<T>(t) + s.first_head * s.distances, static_cast<int>(s.distances)};
}

// Computes scores: one thread block per block of queries, whose threads take the blocks of keys in turn.
template <class T>
__global__ void __launch_bounds__(kBlock) score_blocks(const __grid_constant__ Documents<SelectedRows> documents,
                                                       Projected<T> x, Biases<T> biases, float* scores, int columns) {
  extern __shared__ float asks[];
  const int at = static_cast<int>(blockIdx.x), d = documents.find(at);
  const SelectedRows document = documents.rows[d];
  const int own = document.begin + at - documents.before[d];
  if (own > 0) x.load(std::int64_t{document.queries} + own - 1, asks);
  __syncthreads();
  float* const row = scores + (std::int64_t{document.kept} + own) * x.count * columns;
  for (int j = static_cast<int>(threadIdx.x); j < columns; j += kBlock) {
    float found[kMaxIndexHeads];
    for (int h = 0; h < x.heads && j < own; ++h) {
      const float p = x.scale * dot_product(asks + h * x.dim, x.key(std::int64_t{document.keys} + j), x.dim);
      found[h] = p <= 0 ? 0 : p;  // NaN propagates
    }
    for (int g = 0; g < x.count; ++g) {
      float sum = j < own ? biases.of(g, own - j) : 0;
      for (int h = 0; h < x.heads && j < own; ++h) sum += asks[x.heads * x.dim + g * x.heads + h] * found[h];
      row[g * columns + j] = sum;
    }
  }
}

void run_scores(const IndexScores& a, const ExecContext& ctx) {
  check(a);
  visit_float("index_scores", a.projected.dtype(), [&]<class T>() {
    const Projected<T> x = projected_of<T>(a.projected, a.shape);
    const auto bytes = static_cast<std::size_t>(a.shape.key() + a.shape.count * a.shape.heads) * sizeof(float);
    for_documents(
        a.documents, [](const SelectedRows& d) { return d.end - d.begin; },
        [&](const Documents<SelectedRows>& some) {
          launch(ctx, {grid_of(some.before[some.count]), kBlock, bytes}, score_blocks<T>, some, x,
                 biases_of<T>(a.biases, a.shape), device_data<float>(a.scores), static_cast<int>(a.scores.dim(2)));
        });
  });
}

// The score gradients of kept blocks.
struct ScoreGradients {
  SelectedBlocks kept;
  const float* data;

  // Returns the gradient of the score of key block j; 0 if the row does not keep it.
  __device__ float of(int row, int g, int j) const {
    const int n = kept.find(row, g, j);
    return n < 0 ? 0.0f : data[kept.offset(row, g) + n];
  }
  // Returns the first block >= j that is kept by any head of a row; INT_MAX if there is none.
  __device__ int next(int row, int j) const {
    unsigned first = INT_MAX;
    for (int g = 0; g < kept.heads; ++g)
      if (const int n = kept.first_from(row, g, j); n < kept.room) first = min(first, kept.row(row, g)[n]);
    return static_cast<int>(first);
  }
  __device__ bool keeps(int row, int j) const {
    for (int g = 0; g < kept.heads; ++g)
      if (kept.keeps(row, g, j)) return true;
    return false;
  }
};

template <class Args>
ScoreGradients gradients_of(const Args& a) {
  return {SelectedBlocks({a.kept}), device_data<float>(a.dscores)};
}

// Inputs of the gradient kernels. A row of `projected` has the queries, the key and the head weights of one block, for
// blocks [0, end) of a document. dscores has rows for the document's query blocks [begin, end).
template <class T>
struct Backwards {
  Projected<T> x;
  ScoreGradients dscores;
  T* out;
  float beta;

  // Returns the gradient of the dot product of head h of a query, whose head weights are given, and the key of block j.
  __device__ float of_product(const float* weights, int row, int h, int j) const {
    float sum = 0;
    for (int g = 0; g < x.count; ++g) sum += weights[g * x.heads + h] * dscores.of(row, g, j);
    return x.scale * sum;
  }
  __device__ void write(std::int64_t row, int column, float value) const {
    T& to = out[row * x.width + column];
    to = from_float<T>(beta == 0 ? value : beta * to_float(to) + value);
  }
};

// Computes gradients of queries and head weights: one thread block per row of `projected`. The queries in the row of
// block own - 1 score all blocks before block `own`.
template <class T>
__global__ void __launch_bounds__(kBlock)
    query_gradients(const __grid_constant__ Documents<SelectedRows> documents, Backwards<T> b) {
  extern __shared__ float scratch[];
  const Projected<T>& x = b.x;
  const int at = static_cast<int>(blockIdx.x), d = documents.find(at), thread = static_cast<int>(threadIdx.x);
  const SelectedRows document = documents.rows[d];
  const int own = at - documents.before[d] + 1, asked = x.asked(), queries = x.heads * x.dim;
  const std::int64_t first = document.keys, row = first + own;
  const int scores = document.kept + own;  // row of dscores
  float *const asks = scratch, *const sums = asks + asked, *const dproducts = sums + asked,
               *const products = dproducts + kChunk * x.heads;
  x.load(row - 1, asks);
  for (int c = thread; c < asked; c += kBlock) sums[c] = 0;
  const int keys = own >= document.begin && own < document.end ? own : 0;
  for (int start = 0; start < keys; start += kChunk) {
    start = b.dscores.next(scores, start) / kChunk * kChunk;  // skips chunks without kept blocks, whose gradients are 0
    if (start >= keys) break;
    const int count = min(kChunk, keys - start);
    __syncthreads();
    for (int e = thread; e < count * x.heads; e += kBlock) {
      const int j = start + e / x.heads, h = e % x.heads;
      const bool kept = b.dscores.keeps(scores, j);
      const float p = kept ? dot_product(asks + h * x.dim, x.key(first + j), x.dim) : 0.0f;
      products[e] = p <= 0 ? 0 : x.scale * p;
      dproducts[e] = p <= 0 ? 0 : b.of_product(asks + queries, scores, h, j);
    }
    __syncthreads();
    for (int c = thread; c < asked; c += kBlock) {
      float sum = sums[c];
      const int h = c < queries ? c / x.dim : (c - queries) % x.heads, g = c < queries ? 0 : (c - queries) / x.heads;
      for (int j = 0; j < count; ++j)
        sum += c < queries ? dproducts[j * x.heads + h] * to_float(x.key(first + start + j)[c % x.dim])
                           : products[j * x.heads + h] * b.dscores.of(scores, g, start + j);
      sums[c] = sum;
    }
  }
  __syncthreads();  // weights are written by threads other than those that accumulated them
  const int weights = x.width - (x.heads + 1) * x.dim, scored = x.weights - (x.heads + 1) * x.dim;
  for (int c = thread; c < queries; c += kBlock) b.write(row - 1, c, sums[c]);
  for (int c = thread; c < weights; c += kBlock) {
    const bool own_head = c >= scored && c < scored + x.count * x.heads;
    b.write(row - 1, (x.heads + 1) * x.dim + c, own_head ? sums[queries + c - scored] : 0.0f);
  }
}

// Computes gradients of keys: one thread block per row of `projected`. Its threads share the queries of later blocks.
template <class T>
__global__ void __launch_bounds__(kBlock)
    key_gradients(const __grid_constant__ Documents<SelectedRows> documents, Backwards<T> b) {
  __shared__ float key[kMaxIndexDim], dproducts[kChunk * kMaxIndexHeads], sums[kBlock];
  const Projected<T>& x = b.x;
  const int at = static_cast<int>(blockIdx.x), d = documents.find(at), thread = static_cast<int>(threadIdx.x);
  const SelectedRows document = documents.rows[d];
  const int own = at - documents.before[d];
  const std::int64_t first = document.keys;
  const int parts = kBlock / x.dim, part = thread / x.dim, column = thread % x.dim;
  if (thread < x.dim) key[thread] = to_float(x.key(first + own)[thread]);
  float sum = 0;
  for (int start = max(own + 1, document.begin); start < document.end; start += kChunk) {
    const int count = min(kChunk, document.end - start);
    __syncthreads();
    for (int e = thread; e < count * x.heads; e += kBlock) {
      const int h = e % x.heads, i = start + e / x.heads, scores = document.kept + i;
      const std::int64_t row = first + i;
      const bool kept = b.dscores.keeps(scores, own);
      const float p = kept ? dot_product(key, x.query(row - 1) + h * x.dim, x.dim) : 0.0f;
      float weighted = 0;
      for (int g = 0; g < x.count && !(p <= 0); ++g)  // NaN propagates
        weighted += to_float(x.weight(row - 1)[g * x.heads + h]) * b.dscores.of(scores, g, own);
      dproducts[e] = p <= 0 ? 0 : x.scale * weighted;
    }
    __syncthreads();
    for (int e = part; part < parts && e < count * x.heads; e += parts)
      sum += dproducts[e] * to_float(x.query(first + start + e / x.heads - 1)[e % x.heads * x.dim + column]);
  }
  sums[thread] = sum;
  __syncthreads();
  if (thread >= x.dim) return;
  float total = 0;
  for (int p = 0; p < parts; ++p) total += sums[p * x.dim + thread];
  b.write(first + own, x.heads * x.dim + thread, total);
}

void run_scores_backward(const IndexScoresBackward& a, const ExecContext& ctx) {
  check(a);
  visit_float("index_scores_backward", a.projected.dtype(), [&]<class T>() {
    const Backwards<T> b{projected_of<T>(a.projected, a.shape), gradients_of(a), device_data<T>(a.dprojected), a.beta};
    const std::int64_t floats = 2 * (a.shape.key() + a.shape.count * a.shape.heads) + 2 * kChunk * a.shape.heads;
    for_documents(
        a.documents, [](const SelectedRows& d) { return d.end; },
        [&](const Documents<SelectedRows>& some) {
          const dim3 grid = grid_of(some.before[some.count]);
          launch(ctx, {grid, kBlock, static_cast<std::size_t>(floats) * sizeof(float)}, query_gradients<T>, some, b);
          launch(ctx, {grid}, key_gradients<T>, some, b);
        });
  });
}

// Computes gradients of distance biases: one thread block per bucket (x) and KV head of the layer (y). Its threads
// share the rows. Each thread sums the score gradients of its rows' kept blocks, in ascending order of rows and blocks.
template <class T>
__global__ void __launch_bounds__(kBlock)
    distance_gradients(const __grid_constant__ Documents<SelectedRows> documents, ScoreGradients dscores,
                       int first_head, int count, T* out, float beta) {
  __shared__ float sums[kWarps];
  const int bucket = static_cast<int>(blockIdx.x), buckets = static_cast<int>(gridDim.x);
  const int head = static_cast<int>(blockIdx.y), g = head - first_head, thread = static_cast<int>(threadIdx.x);
  const DistanceRange range = distances_of(bucket, buckets);
  float sum = 0;
  for (int d = 0; d < documents.count && g >= 0 && g < count; ++d) {
    const SelectedRows document = documents.rows[d];
    for (int i = max(range.first, document.begin) + thread; i < document.end; i += kBlock) {
      const int row = document.kept + i, end = dscores.kept.first_from(row, g, i - range.first + 1);
      for (int n = dscores.kept.first_from(row, g, max(0, i - range.end + 1)); n < end; ++n)
        sum += dscores.data[dscores.kept.offset(row, g) + n];
    }
  }
  sum = warp_sum(sum);
  if (thread % kWarp == 0) sums[thread / kWarp] = sum;
  __syncthreads();
  if (thread > 0) return;
  float total = 0;
  for (int w = 0; w < kWarps; ++w) total += sums[w];
  T& to = out[head * buckets + bucket];
  to = from_float<T>((beta == 0 ? 0 : beta * to_float(to)) + kDistanceScale * total);
}

void run_distances_backward(const IndexDistancesBackward& a, const ExecContext& ctx) {
  check(a);
  visit_float("index_distances_backward", a.dbiases.dtype(), [&]<class T>() {
    float beta = a.beta;
    for_documents(
        a.documents, [](const SelectedRows& d) { return d.end; },
        [&](const Documents<SelectedRows>& some) {
          launch(ctx, {grid_of(a.shape.distances, a.shape.kv_heads)}, distance_gradients<T>, some, gradients_of(a),
                 static_cast<int>(a.shape.first_head), static_cast<int>(a.shape.count), device_data<T>(a.dbiases),
                 std::exchange(beta, 1.0f));
        });
    if (beta == 0) fill_zero(a.dbiases, ctx.stream);  // without documents, no kernel has scaled or cleared them
  });
}

struct Candidates {
  std::int32_t first, local;  // local is 0 if the head has a different rule
};
struct Losing {
  const float *scores, *mass;
  const std::int32_t* kept;
  float *loss, *gradient;
  const StepState* state;
  int heads, room, block;
  float share, scale;
  int first_head = 0, count = 0;  // heads of this launch
  Candidates rules[kHeads] = {};
};

__device__ float warp_max(float v) {
  for (int distance = kWarp / 2; distance > 0; distance /= 2) v = fmaxf(v, __shfl_xor_sync(~0u, v, distance));
  return v;
}

// Returns the KL divergence of one KV head of block `own`, and writes its gradient unless p.gradient is
// null. A whole warp must call it.
__device__ float divergence(const Losing& p, Candidates rule, std::int64_t at, int own, float factor) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const float *const scores = p.scores + at * p.room, *const mass = p.mass + at * p.room;
  const std::int32_t* const kept = p.kept + at * p.room;
  const auto candidate = [&](int n) { return rule.local > 0 && kept[n] >= rule.first && kept[n] <= own - rule.local; };
  // Calls fn(n), in ascending order, for this lane's candidates: those whose block number modulo 32 is the lane number.
  // Thus the sums do not depend on which other blocks are kept.
  const auto for_own = [&](const auto& fn) {
    for (int n = 0; n < p.room && kept[n] != kNoBlock; ++n)
      if (kept[n] % kWarp == lane && candidate(n)) fn(n);
  };
  float sum = 0, most = -INFINITY, total = 0, result = 0;
  for_own([&](int n) { sum += mass[n], most = fmaxf(most, scores[n]); });
  sum = warp_sum(sum), most = warp_max(most);
  for_own([&](int n) { total += expf(scores[n] - most); });
  const float log_total = logf(warp_sum(total));
  __syncwarp();
  const auto gradient_of = [&](int n) {
    if (!(sum > 0)) return 0.0f;
    const float share = mass[n] / sum, log_q = scores[n] - most - log_total;
    if (share > 0) result += share * (logf(share) - log_q);
    return factor * (expf(log_q) - share);
  };
  for (int n = 0; n < p.room; ++n) {
    const bool none = kept[n] == kNoBlock;
    if ((none ? n : kept[n]) % kWarp != lane) continue;
    const float gradient = !none && candidate(n) ? gradient_of(n) : 0.0f;
    if (p.gradient) p.gradient[at * p.room + n] = gradient;
  }
  return warp_sum(result);
}

// Computes losses: one thread block per block of queries, whose warps take the heads in turn.
__global__ void __launch_bounds__(kBlock)
    index_losses(const __grid_constant__ Documents<PoolSegment> documents, const __grid_constant__ Losing p) {
  __shared__ float sums[kWarps];
  const int warp = static_cast<int>(threadIdx.x) / kWarp, at = static_cast<int>(blockIdx.x), d = documents.find(at);
  const PoolSegment r = documents.rows[d];
  const int own = at - documents.before[d], start = own * p.block - r.leading_gap;
  const int tokens = min(r.count, start + p.block) - max(0, start);
  if (tokens <= 0) return;
  const float share = p.share * static_cast<float>(tokens);
  const float factor = share * p.scale * (p.state ? gradient_scale(*p.state) : 1.0f);
  const std::int64_t row = std::int64_t{r.out} + own;
  float sum = 0;
  for (int g = warp; g < p.count; g += kWarps)
    sum += divergence(p, p.rules[g], row * p.heads + p.first_head + g, own, factor);
  if (threadIdx.x % kWarp == 0) sums[warp] = sum;
  __syncthreads();
  if (threadIdx.x > 0) return;
  float total = 0;
  for (int w = 0; w < kWarps; ++w) total += sums[w];
  p.loss[row] = (p.first_head > 0 ? p.loss[row] : 0.0f) + share * total;
}

void take_rules(const BlockPattern& blocks, Losing& p) {
  for (int g = 0; g < p.count; ++g) {
    const BlockRule& r = blocks.rule(p.first_head + g);
    p.rules[g] = r.kind == BlockRuleKind::content ? Candidates{r.first, r.local} : Candidates{};
  }
}

void run_loss(const IndexLoss& a, const ExecContext& ctx) {
  check(a);
  Losing p{.scores = device_data<float>(a.scores),
           .mass = device_data<float>(a.mass),
           .kept = device_data<std::int32_t>(a.kept),
           .loss = device_data<float>(a.loss),
           .gradient = device_data<float>(a.gradient),
           .state = device_state("index_loss", a.state),
           .heads = static_cast<int>(a.scores.dim(1)),
           .room = static_cast<int>(a.scores.dim(2)),
           .block = a.blocks->block(),
           .share = a.share,
           .scale = a.scale};
  for_documents(
      a.documents, [&](const PoolSegment& r) { return r.blocks(a.blocks->block()); },
      [&](const Documents<PoolSegment>& some) {
        for (p.first_head = 0; p.first_head < p.heads; p.first_head += kHeads) {
          p.count = std::min(kHeads, p.heads - p.first_head);
          take_rules(*a.blocks, p);
          launch(ctx, {grid_of(some.before[some.count])}, index_losses, some, p);
        }
      });
}

const bool added_block_index[] = {index_scores_kernel.add(Backend::cuda, {"rows", run_scores}),
                                  index_scores_backward_kernel.add(Backend::cuda, {"rows", run_scores_backward}),
                                  index_distances_backward_kernel.add(Backend::cuda, {"rows", run_distances_backward}),
                                  index_loss_kernel.add(Backend::cuda, {"rows", run_loss})};

}  // namespace
}  // namespace ring::cuda
