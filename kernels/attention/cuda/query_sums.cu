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
  int residue_rows;              // N / rate: number of rows of each residue
  int heads, group, parts, dim;  // group: query heads per KV head; parts: 64-column parts of a head
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

// Writes dq from the accumulators: one thread block per 64 queries and 64 columns of one head. If turns were counted,
// the 64 queries are one tile.
__global__ void finish_queries(const FinishParams p) {
  constexpr int kPieces = kSumColumns / 4, kStep = kBlock / kPieces;  // kPieces: float4 per row; kStep: rows per step
  const int index = static_cast<int>(blockIdx.x) / p.parts, part = static_cast<int>(blockIdx.x) % p.parts;
  const int head = index % p.heads, piece = static_cast<int>(threadIdx.x) % kPieces;
  const int column = part * kSumColumns + piece * 4;
  const TileItem item = p.items[index / p.heads];
  const HeadSegment s(p.pass, item.piece, p.pass.offset(head / p.group));
  const int first = s.q_first + item.block * kQueryTile, rows = min(kQueryTile, s.q_end - first);
  if (rows <= 0 || column >= p.dim) return;
  const int in_tile = p.turns ? 0 : first % kQueryTile;
  const int token = s.q_row + first * s.rate;
  const int row = s.rate == 1 ? token : token % s.rate * p.residue_rows + token / s.rate;
  const std::int64_t sums = (std::int64_t{head} * p.parts + part) * p.tokens + row;
  const bool added = !p.turns || p.turns[sums] != 0;
#pragma unroll
  for (int i = 0; i < kQueryTile; i += kStep) {
    const int r = i + static_cast<int>(threadIdx.x) / kPieces;
    if (r >= rows) continue;
    float4 x{0, 0, 0, 0};
    const int from = swizzled_piece(piece / 2, in_tile + r) * 8 + piece % 2 * 4;
    if (added) x = *reinterpret_cast<const float4*>(p.sums + (sums + r) * kSumColumns + from);
    write4(p.dq, token + r * s.rate, head, column, {x.x * p.scale, x.y * p.scale, x.z * p.scale, x.w * p.scale});
  }
}

}  // namespace

QuerySums::QuerySums(const AttentionBackward& a, bool cleared, const ExecContext& ctx)
    : parts_(divide_up(a.q.dim(2), kSumColumns)) {
  const Shape shape{a.q.dim(1) * parts_, a.q.dim(0), kSumColumns};
  sums_ = cleared ? ctx.zeros(shape) : ctx.empty(shape);
  if (!cleared) turns_ = ctx.zeros({shape[0], shape[1]});
}

void QuerySums::write_dq(const AttentionBackward& a, const BranchPass& pass, const ExecContext& ctx) const {
  const std::int64_t heads = a.q.dim(1);
  BranchPass all = pass;  // schedules blocks of all queries, even if the pass has block lists
  all.listed = false;
  const SchedulePlan plan = plan_schedule(all, a.pattern, a.queries, a.keys, a.selection, Stationary::q, heads,
                                          a.k.dim(1), kQueryTile, 4 * a.q.dim(2), ctx);
  if (plan.blocks == 0) return;
  const FinishParams p{sums_data(),
                       turns_data(),
                       output_of(a.dq, a.carry_dq),
                       pass,
                       plan.work.items,
                       a.q.dim(0),
                       static_cast<int>(a.q.dim(0) / pass.rate),
                       static_cast<int>(heads),
                       static_cast<int>(heads / a.k.dim(1)),
                       static_cast<int>(parts_),
                       static_cast<int>(a.q.dim(2)),
                       a.scale / (1 - a.dropout.rate)};
  launch(ctx, {grid_of(plan.blocks * parts_)}, finish_queries, p);
}

}  // namespace ring::cuda
