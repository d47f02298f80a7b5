// Attention by plain multiply-adds in f32, for f32 tensors and for what the tensor-core kernels do not take.

#include "kernels/attention/cuda/simt.cuh"

namespace ring::cuda {
namespace {

constexpr int kR = 4, kRows = kSide * kR;  // queries of a block, and keys of a tile

template <class T>
struct Params {
  HeadsOf<const T> q, k, v;
  HeadsOf<T> out;
  float* lse;
  std::int64_t tokens;
  int dim, group;
  float factor;  // from a product to a power of two
  bool causal;
  Work work;
};

constexpr std::size_t shared_bytes(int dim) {
  return static_cast<std::size_t>(kRows) * (2 * simt_pitch(dim) + simt_pitch(kRows)) * sizeof(float);
}

template <class Op>
__device__ float over_row(float v, Op op) {  // the 16 lanes with the same y
#pragma unroll
  for (int distance = kSide / 2; distance > 0; distance /= 2) v = op(v, __shfl_xor_sync(0xffffffffu, v, distance));
  return v;
}

// Scores become weights relative to the largest score so far; rescale: what this makes of earlier sums.
__device__ void softmax(float (&s)[kR][kR], float (&largest)[kR], float (&total)[kR], float (&rescale)[kR]) {
#pragma unroll
  for (int i = 0; i < kR; ++i) {
    float best = largest[i], sum = 0;
#pragma unroll
    for (int j = 0; j < kR; ++j) best = fmaxf(best, s[i][j]);
    best = over_row(best, [](float a, float b) { return fmaxf(a, b); });
    const float shift = best == -INFINITY ? 0.0f : best;
    rescale[i] = exp2f(largest[i] - shift);
#pragma unroll
    for (int j = 0; j < kR; ++j) sum += s[i][j] = exp2f(s[i][j] - shift);
    total[i] = total[i] * rescale[i] + over_row(sum, [](float a, float b) { return a + b; });
    largest[i] = best;
  }
}

template <class T, int kDim>
__global__ __launch_bounds__(kSimtThreads) void simt_forward(const __grid_constant__ Params<T> p) {
  extern __shared__ float4 memory[];
  float* queries = reinterpret_cast<float*>(memory);
  float *tile = queries + kRows * simt_pitch(p.dim), *weights = tile + kRows * simt_pitch(p.dim);
  const Lanes t;
  const Work::Place at = p.work[blockIdx.x];
  const Mask<Owner::queries> mask{at.length, p.causal};
  const int end = p.causal ? min(at.length, at.row + kRows) : at.length, rows = at.length - at.row;
  load_rows<kRows>(queries, p.q.at(at.start + at.row, at.head), p.q.row, rows, p.dim);
  Sums<kR, kDim> sums;
  clear_sums<kR, kDim>(sums);
  float largest[kR], total[kR], rescale[kR];
#pragma unroll
  for (int i = 0; i < kR; ++i) largest[i] = -INFINITY, total[i] = 0.0f;
  for (int key = 0; key < end; key += kRows) {
    __syncthreads();  // the tile before has been read
    load_rows<kRows>(tile, p.k.at(at.start + key, at.head / p.group), p.k.row, at.length - key, p.dim);
    __syncthreads();
    float s[kR][kR];
    dot_rows<kR>(s, queries, tile, p.dim);
#pragma unroll
    for (int i = 0; i < kR; ++i)
#pragma unroll
      for (int j = 0; j < kR; ++j)
        s[i][j] = mask(at.row + t.y * kR + i, key + t.x + kSide * j) ? __fmul_rn(s[i][j], p.factor) : -INFINITY;
    softmax(s, largest, total, rescale);
    put_rows<kR>(weights, s);
    __syncthreads();  // the keys have been read
    load_rows<kRows>(tile, p.v.at(at.start + key, at.head / p.group), p.v.row, at.length - key, p.dim);
    __syncthreads();
#pragma unroll
    for (int i = 0; i < kR; ++i)
#pragma unroll
      for (int c = 0; c < kDim / 64 * 4; ++c) sums[i][c / 4][c % 4] *= rescale[i];
    add_product<kR, kDim>(sums, weights, tile, p.dim);
  }
  float* lse = p.lse + at.head * p.tokens + at.start + at.row;
#pragma unroll
  for (int i = 0; i < kR; ++i) {
    const int row = t.y * kR + i;
    rescale[i] = total[i] == 0.0f ? 0.0f : 1.0f / total[i];
    if (t.x == 0 && row < rows) lse[row] = total[i] == 0.0f ? -INFINITY : (largest[i] + log2f(total[i])) * kLn2;
  }
  write_sums<kR, kDim>(sums, rescale, p.out.at(at.start + at.row, at.head), p.out.row, rows, p.dim);
}

template <class T>
void run(const Attention& args, const Context& ctx) {
  const int heads = static_cast<int>(args.q.dim(1)), group = heads / static_cast<int>(args.k.dim(1));
  const int dim = static_cast<int>(args.q.dim(2));
  const BlockPlan plan = plan_blocks(args.offsets, Owner::queries, heads, kRows, args.causal,
                                     std::max<int>(1, 2 * dim * static_cast<int>(sizeof(T)) / group), ctx);
  const Params<T> p{heads_of<const T>(args.q),
                    heads_of<const T>(args.k),
                    heads_of<const T>(args.v),
                    heads_of<T>(args.out),
                    args.lse.data<float>(),
                    args.q.dim(0),
                    dim,
                    group,
                    args.scale * kLog2E,
                    args.causal,
                    plan.work};
  const auto kernel = dim <= 64 ? simt_forward<T, 64> : dim <= 128 ? simt_forward<T, 128> : simt_forward<T, 256>;
  launch(ctx, {grid_of(plan.blocks), kSimtThreads, shared_bytes(dim)}, kernel, p);
}

void run_simt_forward(const Attention& args, const Context& ctx) {
  check(args);
  fill_outside(args, ctx);
  visit_float("attention", args.q.dtype(), [&]<class T>() { run<T>(args, ctx); });
}

bool supports(const Attention& args, const Context&) { return args.q.dim(2) <= 256; }

const bool added = attention_kernel.add(Backend::cuda, {"own_simt", run_simt_forward, supports, 0});

}  // namespace
}  // namespace ring::cuda
