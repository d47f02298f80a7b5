// The backward by plain multiply-adds in f32. As in mma_backward.cuh, one kernel serves both directions: a thread block
// owns rows of x and y and streams tiles of a and b.

#include "kernels/attention/cuda/simt.cuh"

namespace ring::cuda {
namespace {

template <class T>
struct Params {
  HeadsOf<const T> x, y, a, b;
  HeadsOf<T> dx, dy;
  const float *lse2, *delta;
  std::int64_t tokens;
  int dim, group;
  float factor, scale;  // from a product to a power of two; of the scores
  bool causal;
  Work work;
};

// Rows of a block and of a streamed tile: four tiles must fit into shared memory.
template <int kDim>
constexpr int kRowsOf = kDim <= 128 ? 64 : 32;

template <int kDim>
constexpr std::size_t shared_bytes(int dim) {
  constexpr int rows = kRowsOf<kDim>;
  return static_cast<std::size_t>(rows) * (4 * simt_pitch(dim) + simt_pitch(rows) + 2) * sizeof(float);
}

// lse2 (+inf where there is no query, so that its weights are 0) and delta of kRows queries.
template <int kRows>
__device__ void load_statistics(float* shared, const float* lse2, const float* delta, int rows) {
  const int i = static_cast<int>(threadIdx.x);
  if (i >= kRows) return;
  shared[i] = i < rows ? lse2[i] : INFINITY;
  shared[kRows + i] = i < rows ? delta[i] : 0.0f;
}

template <class T, Owner owner, int kDim>
__global__ __launch_bounds__(kSimtThreads) void simt_backward(const __grid_constant__ Params<T> p) {
  constexpr bool kKeys = owner == Owner::keys;
  constexpr int kRows = kRowsOf<kDim>, kR = kRows / kSide;
  extern __shared__ float4 memory[];
  const int dim = p.dim, size = kRows * simt_pitch(dim);
  float *x = reinterpret_cast<float*>(memory), *y = x + size, *a = y + size, *b = a + size, *pairs = b + size;
  float* statistics = pairs + kRows * simt_pitch(kRows);
  const Lanes t;
  const Work::Place at = p.work[blockIdx.x];
  const Mask<owner> mask{at.length, p.causal};
  const int rows = at.length - at.row, end = !kKeys && p.causal ? min(at.length, at.row + kRows) : at.length;
  const Tiles stream(kKeys && p.causal ? at.row : 0, end, kRows, kKeys ? p.group : 1);
  const std::int64_t own = std::int64_t{at.start} + at.row;
  load_rows<kRows>(x, p.x.at(own, at.head), p.x.row, rows, dim);
  load_rows<kRows>(y, p.y.at(own, at.head), p.y.row, rows, dim);
  if (!kKeys)
    load_statistics<kRows>(statistics, p.lse2 + at.head * p.tokens + own, p.delta + at.head * p.tokens + own, rows);
  Sums<kR, kDim> dx, dy;
  clear_sums<kR, kDim>(dx);
  clear_sums<kR, kDim>(dy);
  Tiles::Place tile = stream.begin();
  for (int i = 0; i < stream.count; ++i, tile = stream.after(tile)) {
    const int head = (kKeys ? at.head * p.group : at.head / p.group) + tile.head, column = tile.row;
    const std::int64_t token = std::int64_t{at.start} + column;
    __syncthreads();  // the tiles before have been read
    load_rows<kRows>(a, p.a.at(token, head), p.a.row, at.length - column, dim);
    load_rows<kRows>(b, p.b.at(token, head), p.b.row, at.length - column, dim);
    if (kKeys)
      load_statistics<kRows>(statistics, p.lse2 + head * p.tokens + token, p.delta + head * p.tokens + token,
                             at.length - column);
    __syncthreads();
    float weights[kR][kR], gradients[kR][kR];
    dot_rows<kR>(weights, x, a, dim);
    dot_rows<kR>(gradients, y, b, dim);
#pragma unroll
    for (int r = 0; r < kR; ++r)
#pragma unroll
      for (int c = 0; c < kR; ++c) {
        const int in_rows = t.y * kR + r, in_columns = t.x + kSide * c, query = kKeys ? in_columns : in_rows;
        const float power = weights[r][c] * p.factor - statistics[query];
        weights[r][c] = mask(at.row + in_rows, column + in_columns) ? exp2f(power) : 0.0f;
        gradients[r][c] = weights[r][c] * (gradients[r][c] - statistics[kRows + query]);
      }
    if constexpr (kKeys) {
      put_rows<kR>(pairs, weights);
      add_product<kR, kDim>(dy, pairs, b, dim);
    }
    put_rows<kR>(pairs, gradients);
    add_product<kR, kDim>(dx, pairs, a, dim);
  }
  float factor[kR];
#pragma unroll
  for (int r = 0; r < kR; ++r) factor[r] = p.scale;
  write_sums<kR, kDim>(dx, factor, p.dx.at(own, at.head), p.dx.row, rows, dim);
  if constexpr (kKeys) {
#pragma unroll
    for (int r = 0; r < kR; ++r) factor[r] = 1.0f;
    write_sums<kR, kDim>(dy, factor, p.dy.at(own, at.head), p.dy.row, rows, dim);
  }
}

template <class T, Owner owner, int kDim>
void launch_one(const AttentionBackward& args, Params<T> p, std::int64_t heads, const Context& ctx) {
  const BlockPlan plan = plan_blocks(args.offsets, owner, static_cast<int>(heads), kRowsOf<kDim>, args.causal,
                                     2 * p.dim * static_cast<int>(sizeof(T)), ctx);
  p.work = plan.work;
  launch(ctx, {grid_of(plan.blocks), kSimtThreads, shared_bytes<kDim>(p.dim)}, simt_backward<T, owner, kDim>, p);
}

template <class T, int kDim>
void launch_both(const AttentionBackward& args, Params<T> p, const Context& ctx) {
  const auto q = heads_of<const T>(args.q), k = heads_of<const T>(args.k), v = heads_of<const T>(args.v),
             dout = heads_of<const T>(args.dout);
  p.x = k, p.y = v, p.a = q, p.b = dout, p.dx = heads_of<T>(args.dk), p.dy = heads_of<T>(args.dv);
  launch_one<T, Owner::keys, kDim>(args, p, args.k.dim(1), ctx);
  p.x = q, p.y = dout, p.a = k, p.b = v, p.dx = heads_of<T>(args.dq), p.dy = {};
  launch_one<T, Owner::queries, kDim>(args, p, args.q.dim(1), ctx);
}

template <class T>
void run(const AttentionBackward& args, const Context& ctx) {
  const RowStatistics statistics = row_statistics(args, ctx);
  Params<T> p{};
  p.lse2 = statistics.lse2.data<float>();
  p.delta = statistics.delta.data<float>();
  p.tokens = args.q.dim(0);
  p.dim = static_cast<int>(args.q.dim(2));
  p.group = static_cast<int>(args.q.dim(1) / args.k.dim(1));
  p.factor = args.scale * kLog2E;
  p.scale = args.scale;
  p.causal = args.causal;
  if (p.dim <= 64) return launch_both<T, 64>(args, p, ctx);
  if (p.dim <= 128) return launch_both<T, 128>(args, p, ctx);
  launch_both<T, 256>(args, p, ctx);
}

void run_simt_backward(const AttentionBackward& args, const Context& ctx) {
  check(args);
  fill_outside(args, ctx);
  visit_float("attention_backward", args.q.dtype(), [&]<class T>() { run<T>(args, ctx); });
}

bool supports(const AttentionBackward& args, const Context&) { return args.q.dim(2) <= 256; }

const bool added = attention_backward_kernel.add(Backend::cuda, {"own_simt", run_simt_backward, supports, 0});

}  // namespace
}  // namespace ring::cuda
