// Attention with plain f32 FMAs, for f32 tensors and for shapes that the tensor-core kernels do not support.

#include "kernels/attention/cuda/simt.cuh"

namespace ring::cuda {
namespace {

// kR: rows and columns of scores per thread. Thread (x, y) has rows y kR + i and columns x + kSide j, for i, j < kR.
// kRows: queries per thread block, and keys per tile.
constexpr int kR = 4, kRows = kSide * kR;

template <class T>
struct PlainForwardParams {
  HeadsOf<const T> q, k, v;
  Output out;
  float* lse;
  std::int64_t tokens;
  int dim, group;
  float factor, cap;  // attention scale and soft cap, times log2(e)
  BranchPass pass;
  TileSchedule work;
  DropoutParams dropout;
};

constexpr std::size_t shared_floats(int dim) {
  return static_cast<std::size_t>(kRows) * (2 * simt_pitch(dim) + simt_pitch(kRows));
}

template <class Op>
__device__ float over_row(float v, Op op) {  // reduces over the 16 lanes with the same y
#pragma unroll
  for (int distance = kSide / 2; distance > 0; distance /= 2) v = op(v, __shfl_xor_sync(0xffffffffu, v, distance));
  return v;
}

// Online softmax: converts scores to P relative to the new row max. rescale: output, factor for earlier accumulators.
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

// Sets dropped elements of P to 0. row_keys: dropout keys of the queries from the thread block's first row on.
// column: first column of the tile.
__device__ void drop(float (&s)[kR][kR], const SimtState<Stationary::q>& cta, int column, const std::uint32_t* row_keys,
                     std::uint32_t threshold) {
  const Lanes t;
  const HeadSegment& segment = cta.segment;
  const Range exist = cta.own_range(0);
#pragma unroll
  for (int i = 0; i < kR; ++i) {
    const int row = t.y * kR + i;
    const std::uint32_t row_key = exist.has(row) ? row_keys[std::int64_t{row} * segment.rate] : 0;
#pragma unroll
    for (int j = 0; j < kR; ++j)
      if (dropout_bits(row_key, column_key(segment, column + t.x + kSide * j)) < threshold) s[i][j] = 0.0f;
  }
}

// Epilogue: normalizes, merges with the carry if there is one, and writes.
template <class T, int kDim>
__device__ void finish(const PlainForwardParams<T>& p, const SimtState<Stationary::q>& cta, const Sums<kR, kDim>& sums,
                       const float (&largest)[kR], const float (&total)[kR]) {
  const Lanes t;
  const RowsOut to = cta.out(p.out, /*parts=*/nullptr, /*in_block=*/0, /*column=*/0, p.dim);
  float* lse = p.lse + cta.head * p.tokens + cta.own_row(0);
  float factor[kR], kept[kR];
#pragma unroll
  for (int i = 0; i < kR; ++i) {
    const int row = t.y * kR + i;
    float* at = lse + std::int64_t{row} * cta.segment.rate;
    const float own = total[i] == 0.0f ? -INFINITY : (largest[i] + log2f(total[i])) * kLn2;
    const Merged both = merge(own, to.carry && to.exist.has(row) ? *at : -INFINITY);
    factor[i] = total[i] == 0.0f ? 0.0f : both.own / total[i] * p.dropout.scale;
    kept[i] = both.before;
    __syncwarp();  // all lanes of the row have read the carry's lse
    if (t.x == 0 && to.exist.has(row)) *at = both.lse;
  }
  write_sums<kR, kDim>(sums, factor, kept, to);
}

template <class T, int kDim>
__global__ __launch_bounds__(kSimtThreads,
                             kDim <= 128 ? 2 : 1) void simt_forward(const __grid_constant__ PlainForwardParams<T> p) {
  extern __shared__ float4 memory[];
  // Shared memory: queries [kRows]; a tile of keys, later of values [kRows]; probabilities [kRows,kRows]; state.
  float* queries = reinterpret_cast<float*>(memory);
  float *tile = queries + kRows * simt_pitch(p.dim), *weights = tile + kRows * simt_pitch(p.dim);
  auto& cta = *reinterpret_cast<SimtState<Stationary::q>*>(queries + shared_floats(p.dim));
  if (!cta.template open<kRows, kRows>(p.work, p.pass, p.group, /*step=*/kRows, /*in_block=*/0)) return;
  // Rows of a segment are segment.rate tokens apart (dilation). own_*: the block's queries; streamed_*: the keys. The
  // argument 0 of own_*() and of `reach` is in_block: all threads share the rows of the thread block.
  const HeadSegment& segment = cta.segment;
  load_rows<kRows>(queries, p.q.at(cta.own_row(0), cta.head), p.q.row * segment.rate, cta.own_range(0), p.dim);
  Sums<kR, kDim> sums;
  clear_sums<kR, kDim>(sums);
  float largest[kR], total[kR], rescale[kR];
#pragma unroll
  for (int i = 0; i < kR; ++i) largest[i] = -INFINITY, total[i] = 0.0f;
  const int half = cta.row / 64 % 2;  // this block's half of the 128 rows that a tile of the block list has
  // Tiles of keys. `column`: first column of the tile; `states`: its coverage by the block list, if there is a list.
  for (int cursor = cta.columns.cursor, column, states; cta.columns.next(cursor, column, states);) {
    if (list_coverage(states, half) == BlockCoverage::none) continue;
    const std::int64_t row = cta.streamed_row(column);
    const int head = cta.streamed_head;
    const Range exist = cta.streamed_range(column);
    __syncthreads();  // the previous tile has been read
    load_rows<kRows>(tile, p.k.at(row, head), p.k.row * segment.rate, exist, p.dim);
    __syncthreads();
    float s[kR][kR];
    dot_rows<kR>(s, queries, tile, p.dim);
    // Prevents an FMA with the subtraction in softmax(): scores and their maximum must be rounded in the same way.
#pragma unroll
    for (int i = 0; i < kR * kR; ++i) s[i / kR][i % kR] = capped(__fmul_rn(s[i / kR][i % kR], p.factor), p.cap);
    // All warps have the same reach, that of the whole block.
    if (!cta.reach[0].all(column, kRows)) mask_sums<Stationary::q, kR>(s, segment, cta.row, column, -INFINITY);
    softmax(s, largest, total, rescale);
    if (p.dropout.keys)
      drop(s, cta, column, p.dropout.keys + cta.head * p.tokens + cta.own_row(0), p.dropout.threshold);
    put_rows<kR>(weights, s);
    __syncthreads();  // the keys have been read
    load_rows<kRows>(tile, p.v.at(row, head), p.v.row * segment.rate, exist, p.dim);
    __syncthreads();
#pragma unroll
    for (int i = 0; i < kR; ++i)
#pragma unroll
      for (int c = 0; c < kDim / 64 * 4; ++c) sums[i][c / 4][c % 4] *= rescale[i];
    add_product<kR, kDim>(sums, weights, tile, p.dim);
  }
  finish<T, kDim>(p, cta, sums, largest, total);
}

template <class T>
void run(const Attention& args, const BranchPass& pass, const Tensor& row_keys, const ExecContext& ctx) {
  const std::int64_t heads = args.q.dim(1), kv_heads = args.k.dim(1), group = heads / kv_heads;
  const int dim = static_cast<int>(args.q.dim(2)), kv_bytes = 2 * dim * static_cast<int>(sizeof(T));
  const int streamed_bytes = std::max(1, kv_bytes / static_cast<int>(group));  // per key position and query head
  const SchedulePlan plan = plan_schedule(pass, args.pattern, args.queries, args.keys, args.selection, Stationary::q,
                                          heads, kv_heads, kRows, streamed_bytes, ctx);
  const PlainForwardParams<T> p{heads_of<const T>(args.q),
                                heads_of<const T>(args.k),
                                heads_of<const T>(args.v),
                                output_of(args.out, args.carry),
                                args.lse.data<float>(),
                                args.q.dim(0),
                                dim,
                                static_cast<int>(group),
                                args.scale * kLog2E,
                                args.soft_cap * kLog2E,
                                pass,
                                plan.work,
                                dropout_params(args.dropout, row_keys)};
  const auto kernel = dim <= 64 ? simt_forward<T, 64> : dim <= 128 ? simt_forward<T, 128> : simt_forward<T, 256>;
  const std::size_t shared = shared_floats(dim) * sizeof(float) + sizeof(SimtState<Stationary::q>);
  launch(ctx, {grid_of(plan.blocks), kSimtThreads, shared}, kernel, p);
}

void run_simt_forward(const Attention& args, const ExecContext& ctx) {
  check(args);
  fill_outside(args, ctx);
  const Tensor row_keys = dropout_keys(args.dropout, args.lse, ctx);
  // One launch per dilated branch, or a single launch; each launch merges into the carry of the previous one.
  forward_passes(
      args, ctx, [&](const Tensor& lse) { fill_no_keys(lse, ctx); },
      [&](const Attention& one, const BranchPass& pass) {
        visit_float("attention", one.q.dtype(), [&]<class T>() { run<T>(one, pass, row_keys, ctx); });
      });
}

bool supports(const Attention& args, const ExecContext&) { return args.q.dim(2) <= 256; }

const bool added_simt_forward = attention_kernel.add(Backend::cuda, {"own_simt", run_simt_forward, supports, 0});

}  // namespace
}  // namespace ring::cuda
