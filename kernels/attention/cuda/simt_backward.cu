// Backward with plain f32 FMAs. As in mma_backward.cuh, one kernel template computes dk and dv or dq: a thread block
// owns rows of x and y and streams tiles of a and b.

#include "kernels/attention/cuda/backward_params.cuh"
#include "kernels/attention/cuda/simt.cuh"

namespace ring::cuda {
namespace {

// Rows of a thread block and of a streamed tile. They are limited because four tiles must fit into shared memory.
template <int kDim>
constexpr int kRowsOf = kDim <= 128 ? 64 : 32;

template <int kDim>
constexpr std::size_t backward_floats(int dim) {
  constexpr int rows = kRowsOf<kDim>;
  return static_cast<std::size_t>(rows) * (4 * simt_pitch(dim) + simt_pitch(rows) + 3);
}

// Loads lse2 and delta of kRows queries from query `first` on, `stride` apart, and their dropout keys if there is
// dropout. A query that is out of range has lse2 = inf, so that its P is 0.
template <int kRows>
__device__ void load_statistics(float* shared, const BackwardParams& p, const DropoutParams& dropout,
                                std::int64_t first, std::int64_t stride, Range exist) {
  const int i = static_cast<int>(threadIdx.x);
  if (i >= kRows) return;
  const std::int64_t at = first + i * stride;
  shared[i] = exist.has(i) ? p.lse2[at] : INFINITY;
  shared[kRows + i] = exist.has(i) ? p.delta[at] : 0.0f;
  if (dropout.keys) shared[2 * kRows + i] = __uint_as_float(exist.has(i) ? dropout.keys[at] : 0);
}

// Calls fn(r, c) for the dropped pairs. keys: dropout keys of the queries.
template <Stationary owner, int kR, class Fn>
__device__ void for_dropped(const SimtState<owner>& cta, int column, const float* keys, std::uint32_t threshold,
                            const Fn& fn) {
  const Lanes t;
#pragma unroll
  for (int r = 0; r < kR; ++r)
#pragma unroll
    for (int c = 0; c < kR; ++c) {
      const int row = t.y * kR + r, in_tile = t.x + kSide * c;
      const bool by_key = owner == Stationary::kv;
      const std::uint32_t query = __float_as_uint(keys[by_key ? in_tile : row]);
      if (dropout_bits(query, column_key(cta.segment, by_key ? cta.row + row : column + in_tile)) < threshold) fn(r, c);
    }
}

// Replaces the products x.a by P, and the products y.b by dS, the gradient of the uncapped scores. If keys are
// stationary, P becomes 0 for pairs that dropout drops, because it then goes into the gradient of v.
template <Stationary owner, int kR>
__device__ void weigh(float (&weights)[kR][kR], float (&gradients)[kR][kR], const SimtState<owner>& cta, int column,
                      float factor, float cap, const float* statistics, const DropoutParams& dropout) {
  constexpr int kRows = kSide * kR;
  const Lanes t;
  float slopes[kR][kR];
#pragma unroll
  for (int r = 0; r < kR; ++r)
#pragma unroll
    for (int c = 0; c < kR; ++c) {
      const float score = cap == 0 ? weights[r][c] * factor : capped(weights[r][c] * factor, cap);
      slopes[r][c] = cap == 0 ? 1.0f : 1.0f - score / cap * (score / cap);
      weights[r][c] = exp2f(score - statistics[owner == Stationary::kv ? t.x + kSide * c : t.y * kR + r]);
    }
  if (!cta.reach[0].all(column, kRows)) mask_sums<owner, kR>(weights, cta.segment, cta.row, column, 0.0f);
  if (dropout.keys)
    for_dropped<owner, kR>(cta, column, statistics + 2 * kRows, dropout.threshold,
                           [&](int r, int c) { gradients[r][c] = 0.0f; });
#pragma unroll
  for (int r = 0; r < kR; ++r)
#pragma unroll
    for (int c = 0; c < kR; ++c)
      gradients[r][c] =
          weights[r][c] * slopes[r][c] *
          (gradients[r][c] - statistics[kRows + (owner == Stationary::kv ? t.x + kSide * c : t.y * kR + r)]);
  if (owner == Stationary::kv && dropout.keys)
    for_dropped<owner, kR>(cta, column, statistics + 2 * kRows, dropout.threshold,
                           [&](int r, int c) { weights[r][c] = 0.0f; });
}

template <class T, Stationary owner, int kDim>
__global__ __launch_bounds__(kSimtThreads) void simt_backward(const __grid_constant__ PlainBackwardParams<T> p) {
  constexpr bool kKeys = owner == Stationary::kv;
  constexpr int kRows = kRowsOf<kDim>, kR = kRows / kSide;
  extern __shared__ float4 memory[];
  const int dim = p.dim, size = kRows * simt_pitch(dim);
  float *x = reinterpret_cast<float*>(memory), *y = x + size, *a = y + size, *b = a + size, *pairs = b + size;
  float* statistics = pairs + kRows * simt_pitch(kRows);
  auto& cta = *reinterpret_cast<SimtState<owner>*>(x + backward_floats<kDim>(dim));
  if (!cta.template open<kRows, kRows>(p.work, p.pass, p.group, kRows, 0)) return;
  const int rate = cta.segment.rate;
  const std::int64_t own = cta.own_row(0);
  load_rows<kRows>(x, p.x.at(own, cta.head), p.x.row * rate, cta.own_range(0), dim);
  load_rows<kRows>(y, p.y.at(own, cta.head), p.y.row * rate, cta.own_range(0), dim);
  if (!kKeys) load_statistics<kRows>(statistics, p, p.dropout, cta.head * p.tokens + own, rate, cta.own_range(0));
  Sums<kR, kDim> dx, dy;
  clear_sums<kR, kDim>(dx);
  clear_sums<kR, kDim>(dy);
  for (int head = cta.streamed_head, heads = kKeys ? p.group : 1; heads > 0; ++head, --heads)
    for (int cursor = cta.columns.cursor, column, states; cta.columns.next(cursor, column, states);) {
      if (list_coverage(states, cta.row / 64 % 2) == BlockCoverage::none) continue;
      const std::int64_t row = cta.streamed_row(column);
      const Range exist = cta.streamed_range(column);
      __syncthreads();  // the previous tiles have been read
      load_rows<kRows>(a, p.a.at(row, head), p.a.row * rate, exist, dim);
      load_rows<kRows>(b, p.b.at(row, head), p.b.row * rate, exist, dim);
      if (kKeys) load_statistics<kRows>(statistics, p, p.dropout, head * p.tokens + row, rate, exist);
      __syncthreads();
      float weights[kR][kR], gradients[kR][kR];
      dot_rows<kR>(weights, x, a, dim);
      dot_rows<kR>(gradients, y, b, dim);
      weigh<owner, kR>(weights, gradients, cta, column, p.factor, p.cap, statistics, p.dropout);
      if constexpr (kKeys) {
        put_rows<kR>(pairs, weights);
        add_product<kR, kDim>(dy, pairs, b, dim);
      }
      put_rows<kR>(pairs, gradients);
      add_product<kR, kDim>(dx, pairs, a, dim);
    }
  float factor[kR], kept[kR];
#pragma unroll
  for (int r = 0; r < kR; ++r) factor[r] = p.scale * p.dropout.scale, kept[r] = 1.0f;
  write_sums<kR, kDim>(dx, factor, kept, cta.out(p.dx, p.dx_parts, 0, 0, dim));
  if constexpr (kKeys) {
#pragma unroll
    for (int r = 0; r < kR; ++r) factor[r] = p.dropout.scale;
    write_sums<kR, kDim>(dy, factor, kept, cta.out(p.dy, p.dy_parts, 0, 0, dim));
  }
}

template <class T, Stationary owner, int kDim>
void launch_owner(const AttentionBackward& args, const BranchPass& pass, const RowStatistics& statistics,
                  const ExecContext& ctx) {
  const std::int64_t kv_heads = args.k.dim(1), group = args.q.dim(1) / kv_heads, dim = args.q.dim(2);
  const std::int64_t bytes = 2 * dim * static_cast<std::int64_t>(sizeof(T));
  const bool keys = owner == Stationary::kv;
  const SchedulePlan plan =
      plan_schedule(pass, args.pattern, args.queries, args.keys, args.selection, owner, keys ? kv_heads : args.q.dim(1),
                    kv_heads, kRowsOf<kDim>, keys ? bytes * group : std::max<std::int64_t>(1, bytes / group), ctx);
  const SplitParts parts(plan, args, ctx);
  const std::size_t shared = backward_floats<kDim>(static_cast<int>(dim)) * sizeof(float) + sizeof(SimtState<owner>);
  launch(ctx, {grid_of(plan.blocks), kSimtThreads, shared}, simt_backward<T, owner, kDim>,
         plain_backward_params<T, owner>(args, pass, statistics, plan, parts));
  parts.add_up(plan, args, ctx);
}

template <class T, int kDim>
void run_dim(const AttentionBackward& args, const BranchPass& pass, Gradient which, const RowStatistics& statistics,
             const ExecContext& ctx) {
  (which == Gradient::keys ? launch_owner<T, Stationary::kv, kDim>
                           : launch_owner<T, Stationary::q, kDim>)(args, pass, statistics, ctx);
}

template <class T>
void run(const AttentionBackward& args, const BranchPass& pass, Gradient which, const RowStatistics& statistics,
         const ExecContext& ctx) {
  const std::int64_t dim = args.q.dim(2);
  (dim <= 64 ? run_dim<T, 64> : dim <= 128 ? run_dim<T, 128> : run_dim<T, 256>)(args, pass, which, statistics, ctx);
}

void run_simt_backward(const AttentionBackward& args, const ExecContext& ctx) {
  check(args);
  fill_outside(args, ctx);
  const RowStatistics statistics = row_statistics(args, ctx);
  backward_passes(args, ctx, [&](const AttentionBackward& one, const BranchPass& pass, Gradient which) {
    visit_float("attention_backward", one.q.dtype(), [&]<class T>() { run<T>(one, pass, which, statistics, ctx); });
  });
}

bool supports(const AttentionBackward& args, const ExecContext&) { return args.q.dim(2) <= 256; }

const bool added_simt_backward =
    attention_backward_kernel.add(Backend::cuda, {"own_simt", run_simt_backward, supports, 0});

}  // namespace
}  // namespace ring::cuda
