#include "kernels/attention/cuda/query_sums.h"

namespace ring::cuda {
namespace {

struct FinishParams {
  const float* sums;
  const unsigned* turns;
  Output dq;
  BranchPass pass;
  const TileItem* items;
  std::int64_t tokens;
  int heads, parts, dim;  // parts: of 64 columns, of a head
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

// A block has a tile of queries of 64 columns of one head.
__global__ void finish_queries(const FinishParams p) {
  constexpr int kPieces = kSumColumns / 4, kStep = kBlock / kPieces;  // pieces of a row; rows at once
  const int index = static_cast<int>(blockIdx.x) / p.parts, part = static_cast<int>(blockIdx.x) % p.parts;
  const int head = index % p.heads, piece = static_cast<int>(threadIdx.x) % kPieces;
  const int column = part * kSumColumns + piece * 4;
  const TileItem item = p.items[index / p.heads];
  const HeadSegment s(p.pass, item.piece, 0);
  const int first = s.q_first + item.block * kQueryTile, rows = min(kQueryTile, s.q_end - first);
  const std::int64_t tile = s.q_row + first, sums = (std::int64_t{head} * p.parts + part) * p.tokens + tile;
  const bool added = p.turns[sums] != 0;
  if (column >= p.dim) return;
#pragma unroll
  for (int i = 0; i < kQueryTile; i += kStep) {
    const int r = i + static_cast<int>(threadIdx.x) / kPieces;
    if (r >= rows) continue;
    float4 x{0, 0, 0, 0};
    const int from = swizzled_piece(piece / 2, r) * 8 + piece % 2 * 4;
    if (added) x = *reinterpret_cast<const float4*>(p.sums + (sums + r) * kSumColumns + from);
    write4(p.dq, tile + r, head, column, {x.x * p.scale, x.y * p.scale, x.z * p.scale, x.w * p.scale});
  }
}

}  // namespace

QuerySums::QuerySums(const AttentionBackward& a, const ExecContext& ctx)
    : parts_(divide_up(a.q.dim(2), kSumColumns)),
      sums_(ctx.empty({a.q.dim(1) * parts_, a.q.dim(0), kSumColumns})),
      turns_(ctx.zeros({a.q.dim(1) * parts_, a.q.dim(0)})) {}

void QuerySums::finish(const AttentionBackward& a, const BranchPass& pass, const ExecContext& ctx) const {
  const std::int64_t heads = a.q.dim(1);
  const SchedulePlan plan = plan_schedule(pass, a.pattern, a.queries, a.keys, Stationary::q, heads, a.k.dim(1),
                                          kQueryTile, 4 * a.q.dim(2), ctx);
  if (plan.blocks == 0) return;
  const FinishParams p{sums_data(),
                       turns_data(),
                       output_of(a.dq, a.carry_dq),
                       pass,
                       plan.work.items,
                       a.q.dim(0),
                       static_cast<int>(heads),
                       static_cast<int>(parts_),
                       static_cast<int>(a.q.dim(2)),
                       a.scale};
  launch(ctx, {grid_of(plan.blocks * parts_)}, finish_queries, p);
}

}  // namespace ring::cuda
