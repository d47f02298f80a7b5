#include "kernels/attention/cuda/query_sums.h"

namespace ring::cuda {
namespace {

constexpr int kWidth = 64;

struct FinishParams {
  const float* sums;
  const unsigned* turns;
  Output dq;
  BranchPass pass;
  const TileItem* items;
  std::int64_t tokens;
  int heads, dim;
  float scale;
};

__device__ inline void write4(const Output& to, std::int64_t row, int head, int column, float4 x) {
  if (to.carry.data) {
    const float* carry = to.carry.at(row, head) + column;
    x = {x.x + carry[0], x.y + carry[1], x.z + carry[2], x.w + carry[3]};
  }
  if (to.half.data) {
    const __nv_bfloat162 packed[2] = {__floats2bfloat162_rn(x.x, x.y), __floats2bfloat162_rn(x.z, x.w)};
    *reinterpret_cast<uint2*>(to.half.at(row, head) + column) = *reinterpret_cast<const uint2*>(packed);
  } else {
    *reinterpret_cast<float4*>(to.whole.at(row, head) + column) = x;
  }
}

// A block has a tile of queries of one head.
template <int width>
__global__ void finish_queries(const FinishParams p) {
  constexpr int kPieces = width / 4, kStep = kBlock / kPieces;  // pieces of a row; rows at once
  const int head = static_cast<int>(blockIdx.x) % p.heads, piece = static_cast<int>(threadIdx.x) % kPieces;
  const TileItem item = p.items[blockIdx.x / p.heads];
  const HeadSegment s(p.pass, item.piece, 0);
  const int first = s.q_first + item.block * kQueryTile, rows = min(kQueryTile, s.q_end - first);
  const std::int64_t tile = s.q_row + first;
  const bool added = p.turns[head * p.tokens + tile] != 0;
  if (piece * 4 >= p.dim) return;
#pragma unroll
  for (int i = 0; i < kQueryTile; i += kStep) {
    const int r = i + static_cast<int>(threadIdx.x) / kPieces;
    const std::int64_t row = tile + r;
    const int from = swizzled_piece(piece / 2, static_cast<int>(row)) * 8 + piece % 2 * 4;
    if (r >= rows) continue;
    float4 x{0, 0, 0, 0};
    if (added) x = *reinterpret_cast<const float4*>(p.sums + (head * p.tokens + row) * width + from);
    write4(p.dq, row, head, piece * 4, {x.x * p.scale, x.y * p.scale, x.z * p.scale, x.w * p.scale});
  }
}

}  // namespace

QuerySums::QuerySums(const AttentionBackward& a, std::int64_t width, const ExecContext& ctx)
    : sums_(ctx.empty({a.q.dim(1), a.q.dim(0), width})), turns_(ctx.zeros({a.q.dim(1), a.q.dim(0)})) {}

void QuerySums::finish(const AttentionBackward& a, const BranchPass& pass, const ExecContext& ctx) const {
  const std::int64_t heads = a.q.dim(1);
  const SchedulePlan plan = plan_schedule(pass, a.pattern, a.queries, a.keys, Stationary::q, heads, a.k.dim(1),
                                          kQueryTile, 4 * a.q.dim(2), ctx);
  if (plan.blocks == 0) return;
  RING_CHECK(sums_.dim(2) == kWidth, "attention_backward: sums of width ", sums_.dim(2));
  const FinishParams p{sums_data(),     turns_data(), output_of(a.dq, a.carry_dq), pass,
                       plan.work.items, a.q.dim(0),   static_cast<int>(heads),     static_cast<int>(a.q.dim(2)),
                       a.scale};
  launch(ctx, {grid_of(plan.blocks)}, finish_queries<kWidth>, p);
}

}  // namespace ring::cuda
