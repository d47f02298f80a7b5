// Selects blocks by content, and pools blocks into their means.

#include "kernels/attention/selected/block_select.h"

#include <algorithm>

#include "kernels/attention/cuda/documents.cuh"
#include "kernels/attention/pools/block_pool.h"
#include "kernels/attention/selection.h"
#include "kernels/cuda/launch.h"

namespace ring::cuda {
namespace {

template <class T, class Out>
struct Pooled {
  const T* x;
  Out* out;
  std::int64_t row, head;         // strides of x, in elements
  int heads, groups, dim, block;  // heads: heads per group
};

// Computes means of blocks: one thread block per pooled block and group of heads. Its warps take the rows in turn; each
// lane takes n columns.
template <int n, class T, class Out>
__global__ void __launch_bounds__(kBlock)
    pool_blocks(const __grid_constant__ Documents<PoolSegment> documents, Pooled<T, Out> p) {
  constexpr int kColumns = n * kWarp;
  __shared__ float sums[kWarps][kColumns];
  const int lane = static_cast<int>(threadIdx.x) % kWarp, warp = static_cast<int>(threadIdx.x) / kWarp;
  const int d = documents.find(static_cast<int>(blockIdx.x)),
            block = static_cast<int>(blockIdx.x) - documents.before[d];
  const int group = static_cast<int>(blockIdx.y);
  const PoolSegment r = documents.rows[d];
  const int start = block * p.block - r.leading_gap, first = max(0, start), end = min(r.count, start + p.block);
  Out* const out = p.out + ((std::int64_t{r.out} + block) * p.groups + group) * p.dim;
  for (int base = 0; base < p.dim; base += kColumns) {
    Floats<n> sum{};
    if (const int column = base + lane * n; column < p.dim)
      for (int row = first + warp; row < end; row += kWarps)
        for (int h = group * p.heads; h < (group + 1) * p.heads; ++h) {
          const Floats<n> x =
              unpack(load_pack<T, n>(p.x + (std::int64_t{r.first} + row) * p.row + h * p.head + column));
#pragma unroll
          for (int j = 0; j < n; ++j) sum.v[j] += x.v[j];
        }
#pragma unroll
    for (int j = 0; j < n; ++j) sums[warp][lane * n + j] = sum.v[j];
    __syncthreads();
    if (const int t = static_cast<int>(threadIdx.x); t < kColumns && base + t < p.dim) {
      float total = 0;
      for (int w = 0; w < kWarps; ++w) total += sums[w][t];
      out[base + t] = from_float<Out>(total / static_cast<float>(end - first));
    }
    __syncthreads();
  }
}

// Returns true if lanes can load two columns at once.
template <class T, class Out>
bool in_pairs(const Pooled<T, Out>& p) {
  return is_aligned<2 * sizeof(T)>(p.x) && (p.row | p.head | p.dim) % 2 == 0;
}

template <class T, class Out>
void pool(const BlockPool& a, const ExecContext& ctx) {
  const std::int64_t groups = a.out.dim(1);
  const Pooled<T, Out> p{device_data<T>(a.x),
                         device_data<Out>(a.out),
                         a.x.stride(0),
                         a.x.stride(1),
                         static_cast<int>(a.x.dim(1) / groups),
                         static_cast<int>(groups),
                         static_cast<int>(a.x.dim(2)),
                         a.block};
  for_documents(
      a.rows, [&](const PoolSegment& r) { return r.blocks(a.block); },
      [&](const Documents<PoolSegment>& some) {
        launch(ctx, {grid_of(some.before[some.count], groups)},
               in_pairs(p) ? pool_blocks<2, T, Out> : pool_blocks<1, T, Out>, some, p);
      });
}

void run_pool(const BlockPool& a, const ExecContext& ctx) {
  check(a);
  RING_CHECK(a.out.dim(1) <= kMaxGridY, "block_pool: ", a.out.dim(1), " groups of heads are more than ", kMaxGridY);
  visit_float("block_pool", a.x.dtype(),
              [&]<class T>() { a.out.dtype() == DType::f32 ? pool<T, float>(a, ctx) : pool<T, T>(a, ctx); });
}

struct Content {
  std::int32_t local, first, keep;  // keep is 0 if the head has a different rule
  float mass;
};
struct Selecting {
  const float *queries, *keys, *scores;  // queries, keys: block means; scores: precomputed scores, or null
  std::int32_t* kept;
  float* kept_scores;             // may be null
  int heads, dim, room, columns;  // room: entries per list of kept blocks; columns: columns of precomputed scores
  float scale;
  int most = 1;                   // maximum candidates per row
  int first_head = 0, count = 0;  // heads of this launch
  Content rules[kHeads] = {};
};

// Maps a score to an integer with the same order; -0 equals +0. A NaN becomes 0, less than all other scores.
__device__ std::uint32_t ordered(float score) {
  if (isnan(score)) return 0;
  const std::uint32_t bits = __float_as_uint(score + 0.0f);
  return bits >> 31 ? ~bits : bits | 0x80000000u;
}

// Returns in lane i the sum of v[i] over all lanes, added in the order of warp_sum(). 32 sums take 31 shuffles.
template <int half = kWarp / 2>
__device__ float sum_for_lane(float (&v)[kWarp], int lane) {
  if constexpr (half == 0) {
    return v[0];
  } else {
    const bool upper = lane & half;
#pragma unroll
    for (int i = 0; i < half; ++i) {
      const float given = upper ? v[i] : v[i + half];
      v[i] = (upper ? v[i + half] : v[i]) + __shfl_xor_sync(~0u, given, half);
    }
    return sum_for_lane<half / 2>(v, lane);
  }
}

// Returns in lane i the score of key i, or of the last key if i >= count. The FMAs of different keys are independent,
// so that they overlap. A lane loads n columns at a time.
template <int n>
__device__ float score_of(const float* q, const float* keys, int stride, int count, int dim, int lane) {
  float sums[kWarp] = {};
  for (int c = lane * n; c < dim; c += kWarp * n) {
    const Floats<n> own = unpack(load_pack<float, n>(q + c));
#pragma unroll
    for (int i = 0; i < kWarp; ++i) {
      const Floats<n> key = unpack(load_pack<float, n>(keys + min(i, count - 1) * stride + c));
#pragma unroll
      for (int j = 0; j < n; ++j) sums[i] += own.v[j] * key.v[j];
    }
  }
  return sum_for_lane(sums, lane);
}

// Returns the number of scores >= `least`. Called by a warp.
__device__ int count_from(std::uint32_t least, const std::uint32_t* scores, int count, int lane) {
  int found = 0;
  for (int j = lane; j < count; j += kWarp) found += scores[j] >= least;
  return warp_sum(found);
}

// Returns the room-th highest score, found bit by bit from the highest bit. If fewer than `room` scores are not NaN,
// returns 1, the lower bound of all scores that are not NaN.
__device__ std::uint32_t min_of_best(int room, const std::uint32_t* scores, int count, int lane) {
  std::uint32_t least = 0;
  for (std::uint32_t bit = 1u << 31; bit > 0; bit /= 2)
    if (count_from(least | bit, scores, count, lane) >= room) least |= bit;
  return max(least, 1u);
}

// The scores to select: all above `score`, and the first `count` scores equal to `score`.
struct Taken {
  std::uint32_t score;
  int count;
};
__device__ Taken best(int room, const std::uint32_t* scores, int count, int lane) {
  const std::uint32_t least = min_of_best(room, scores, count, lane);
  return {least, room - count_from(least + 1, scores, count, lane)};
}

// Unnormalized softmax over all scores that are not NaN.
struct Weights {
  const std::uint32_t* scores;
  int count, lane;
  float scale;
  std::uint32_t largest = 0;

  __device__ Weights(const std::uint32_t* of, int n, float times, int own_lane)
      : scores(of), count(n), lane(own_lane), scale(times) {
    for (int j = lane; j < count; j += kWarp) largest = max(largest, scores[j]);
    for (int distance = kWarp / 2; distance > 0; distance /= 2)
      largest = max(largest, __shfl_xor_sync(~0u, largest, distance));
  }
  static __device__ float value(std::uint32_t ordered) {
    return __uint_as_float(ordered >> 31 ? ordered & 0x7fffffffu : ~ordered);
  }
  __device__ float of(std::uint32_t score) const {  // tests equality first, because inf - inf is NaN
    return score == largest ? 1.0f : expf(scale * (value(score) - value(largest)));
  }
  // Returns the sum of the weights of all scores >= `least`, which must be 1 or more (0 would include NaN).
  __device__ float from(std::uint32_t least) const {
    float sum = 0;
    for (int j = lane; j < count; j += kWarp)
      if (scores[j] >= least) sum += of(scores[j]);
    return warp_sum(sum);
  }
};

// Selects the best scores of `most` until their share of the softmax reaches `mass`. Finds the lowest selected score
// bit by bit, as in min_of_best(), which works because a sum over more scores is never smaller.
__device__ Taken reaching(float mass, const Taken& most, const Weights& w) {
  const float target = mass * w.from(1);
  if (w.largest == 0 || w.from(most.score) < target) return most;
  std::uint32_t least = 0;
  for (std::uint32_t bit = 1u << 31; bit > 0; bit /= 2)
    if (w.from(least | bit) >= target) least |= bit;
  const float each = w.of(least);
  int needed = 0;
  for (float sum = w.from(least + 1); sum < target && needed < w.count; sum += each) ++needed;
  return {least, least > most.score ? needed : min(needed, most.count)};
}

// The list of kept blocks of one row and head, which a warp writes.
struct KeptList {
  std::int32_t* blocks;
  float* kept_scores;   // may be null
  const float* scores;  // scores of this row by block; used with kept_scores
  int room, count = 0;

  // Appends block j of each lane whose `keeps` is true. j must ascend from lane to lane.
  __device__ void append(bool keeps, int j, int lane) {
    const unsigned kept = __ballot_sync(~0u, keeps);
    const int at = count + __popc(kept & ((1u << lane) - 1));
    if (keeps && at < room) {
      blocks[at] = j;
      if (kept_scores) kept_scores[at] = scores[j];
    }
    count += __popc(kept);
  }
  __device__ void fill_up(int lane) const {
    for (int at = count + lane; at < room; at += kWarp) {
      blocks[at] = kNoBlock;
      if (kept_scores) kept_scores[at] = 0.0f;
    }
  }
};

// Selects by content: one warp per block of queries and head. The scores of its candidates, blocks [first, end), are in
// shared memory. The warps of a thread block have neighbouring rows of one head, so that they read the same keys at the
// same time. The last rows start first, because they have the most candidates.
template <int n>
__global__ void __launch_bounds__(kBlock)
    select_by_content(const __grid_constant__ Documents<SelectedRows> documents, const __grid_constant__ Selecting p) {
  extern __shared__ std::uint32_t all_scores[];
  const int lane = static_cast<int>(threadIdx.x) % kWarp, warp = static_cast<int>(threadIdx.x) / kWarp;
  const std::int64_t at = std::int64_t{blockIdx.x} * (blockDim.x / kWarp) + warp;
  const std::int64_t rows = documents.before[documents.count];
  if (at >= rows * p.count) return;
  const auto head_here = static_cast<int>(at / rows), row = static_cast<int>(rows - 1 - at % rows);
  const Content rule = p.rules[head_here];
  if (rule.keep == 0) return;
  const int head = p.first_head + head_here;
  const int d = documents.find(row);
  const SelectedRows document = documents.rows[d];
  const int own = document.begin + row - documents.before[d];
  const int first = rule.first, end = own - rule.local + 1, count = max(0, end - first);
  const auto mean = [&](const float* of, int block) { return of + (std::int64_t{block} * p.heads + head) * p.dim; };
  std::uint32_t* const scores = all_scores + std::int64_t{warp} * p.most;
  const std::int64_t list = (std::int64_t{document.kept} + own) * p.heads + head;
  const float* const given = p.scores + list * p.columns;
  for (int j = lane; p.scores && j < count; j += kWarp) scores[j] = ordered(given[first + j]);
  for (int j = 0; !p.scores && j < count; j += kWarp) {
    const float score = score_of<n>(mean(p.queries, document.queries + own - 1),
                                    mean(p.keys, document.keys + first + j), p.heads * p.dim, count - j, p.dim, lane);
    if (j + lane < count) scores[j + lane] = ordered(score);
  }
  __syncwarp();
  const int room = rule.keep - min(own + 1, min(first, own + 1) + min(rule.local, own + 1));
  Taken taken = best(room, scores, count, lane);
  if (rule.mass < 1) taken = reaching(rule.mass, taken, Weights(scores, count, p.scale, lane));
  KeptList kept{p.kept + list * p.room, p.kept_scores ? p.kept_scores + list * p.room : nullptr, given, p.room};
  int equal = 0;  // scores equal to taken.score so far
  for (int base = 0; base <= own; base += kWarp) {
    const int j = base + lane;
    const bool always = j <= own && (j < first || own - j < rule.local);
    const std::uint32_t score = j >= first && j < end ? scores[j - first] : 0;
    const unsigned equal_ones = __ballot_sync(~0u, score == taken.score);
    const bool takes = score == taken.score && equal + __popc(equal_ones & ((1u << lane) - 1)) < taken.count;
    kept.append(always || score > taken.score || takes, j, lane);
    equal += __popc(equal_ones);
  }
  kept.fill_up(lane);
}

// Selects for one head whose rule is not a content rule: one warp per block of queries.
__global__ void __launch_bounds__(kBlock)
    select_by_rule(const __grid_constant__ Documents<SelectedRows> documents, const __grid_constant__ Selecting p,
                   BlockRule rule, int head) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int row = static_cast<int>(blockIdx.x) * kWarps + static_cast<int>(threadIdx.x) / kWarp;
  if (row >= documents.before[documents.count]) return;
  const int d = documents.find(row), own = documents.rows[d].begin + row - documents.before[d];
  const std::int64_t list = (std::int64_t{documents.rows[d].kept} + own) * p.heads + head;
  KeptList kept{p.kept + list * p.room, p.kept_scores ? p.kept_scores + list * p.room : nullptr,
                p.scores + list * p.columns, p.room};
  for (int base = 0; base <= own; base += kWarp) {
    const int j = base + lane;
    kept.append(j <= own && rule.keeps(head, own, j), j, lane);
  }
  kept.fill_up(lane);
}

// Copies the rules of `p.count` heads, from p.first_head on, to p. Returns true if any of them selects by content.
bool take_rules(const BlockPattern& blocks, Selecting& p) {
  bool any = false;
  for (int h = 0; h < p.count; ++h) {
    const BlockRule& r = blocks.rule(p.first_head + h);
    const bool content = r.kind == BlockRuleKind::content;
    p.rules[h] = content ? Content{r.local, r.first, r.keep, r.mass} : Content{};
    any |= content;
  }
  return any;
}

// Chooses the widest loads that leave work for every lane.
auto kernel_for(int dim) {
  return dim % (4 * kWarp) == 0   ? select_by_content<4>
         : dim % (2 * kWarp) == 0 ? select_by_content<2>
                                  : select_by_content<1>;
}

void launch_content(const Documents<SelectedRows>& some, const Selecting& p, const ExecContext& ctx) {
  constexpr std::int64_t kMaxBytes = 200 << 10;  // shared memory that every GPU with bf16 tensor cores has
  const std::int64_t bytes = std::int64_t{p.most} * 4;
  if (bytes > kMaxBytes)
    fail("block_select: a document of ", p.most, " blocks, but the scores of at most ", kMaxBytes / 4,
         " fit into a GPU's shared memory. Shorten the context, or use larger blocks");
  const std::int64_t warps = std::clamp<std::int64_t>(static_cast<std::int64_t>(kFreeSharedBytes) / bytes, 1, kWarps);
  const std::int64_t rows = std::int64_t{some.before[some.count]} * p.count;
  launch(
      ctx,
      {grid_of(divide_up(rows, warps)), static_cast<unsigned>(warps * kWarp), static_cast<std::size_t>(warps * bytes)},
      kernel_for(p.dim), some, p);
}

void run_select(const BlockSelect& a, const ExecContext& ctx) {
  check(a);
  Selecting p{.queries = device_data<float>(a.queries),
              .keys = device_data<float>(a.keys),
              .scores = device_data<float>(a.scores),
              .kept = device_data<std::int32_t>(a.kept),
              .kept_scores = device_data<float>(a.kept_scores),
              .heads = static_cast<int>(a.kept.dim(1)),
              .dim = a.keys.defined() ? static_cast<int>(a.keys.dim(2)) : 0,
              .room = static_cast<int>(a.kept.dim(2)),
              .columns = a.scores.defined() ? static_cast<int>(a.scores.dim(2)) : 0,
              .scale = a.scale,
              .most = 1};
  for (const SelectedRows& d : a.documents) p.most = std::max(p.most, d.end);
  for_documents(
      a.documents, [](const SelectedRows& d) { return d.end - d.begin; },
      [&](const Documents<SelectedRows>& some) {
        for (p.first_head = 0; p.first_head < p.heads; p.first_head += kHeads) {
          p.count = std::min(kHeads, p.heads - p.first_head);
          if (take_rules(*a.blocks, p)) launch_content(some, p, ctx);
        }
        for (int head = 0; head < p.heads; ++head) {
          const BlockRule& rule = a.blocks->rule(head);
          if (rule.kind == BlockRuleKind::content) continue;
          if (rule.kind == BlockRuleKind::drawn)
            fail(
                "attention: on GPUs, heads with pattern: content or learned cannot be combined with heads of pattern: "
                "file in one layer. Put them into different layers (model.attention_layers)");
          launch(ctx, {grid_of(divide_up(some.before[some.count], kWarps))}, select_by_rule, some, p, rule, head);
        }
      });
}

const bool added_block_select[] = {block_pool_kernel.add(Backend::cuda, {"blocks", run_pool}),
                                   block_select_kernel.add(Backend::cuda, {"warps", run_select})};

}  // namespace
}  // namespace ring::cuda
