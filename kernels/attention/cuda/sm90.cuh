#pragma once
// Shared parts of the Hopper forward and backward: tiles in registers, TMA loads, and masks. jobs.cuh describes the
// warp groups.

#include "kernels/attention/cuda/jobs.cuh"
#include "kernels/cuda/device/mma.cuh"
#include "kernels/cuda/device/wgmma.cuh"

namespace ring::cuda::sm90 {
using namespace persistent;

// Tiles of a consumer in registers: f32 accumulators, and bf16 A operands.
template <int kColumns>
using Sums = RegTile<float, kGroupRows, kColumns>;
template <int kColumns>
using OperandA = RegTile<Bf16, kGroupRows, kColumns>;
struct NoTile {};  // placeholder for a tile that an instance of a kernel does not need

// TMA descriptor of a tensor [N,H,D], viewed as [N / rate, H, rate, D]: rows of the same residue modulo rate are
// neighbours. One TMA instruction copies a box of 64 columns by 64 rows.
struct TensorMap {
  CUtensorMap map;
};
// Makes the descriptor of a tensor. Returns false if the TMA cannot address the tensor: N is not a multiple of the
// rate, or its strides or alignment are not supported.
bool make_tensor_map(const Tensor& t, int rate, TensorMap& to);

// Position of sample 0 of a head segment in the view of a TensorMap; `row` may be negative.
struct TmaRows {
  int residue, first;
  __device__ TmaRows(int row, int rate) : residue(row % rate), first(row / rate) {
    if (residue < 0) residue += rate, --first;
  }
};

// Loads the 64 samples that start at `sample`. Called by a converged warp.
template <int kDim, int kPanelRows>
__device__ inline void tma_load_rows(SmemView<Bf16, kPart, kDim, Swizzle::b128, kPanelRows> to, const TensorMap& from,
                                     const TmaRows& at, int head, int sample, Barrier& barrier) {
#pragma unroll
  for (int i = 0; i < kDim / 64; ++i)
    tma_load(panel(to, i).address, from.map, i * 64, at.residue, head, at.first + sample, barrier);
}

// Returns the bit mask of a lane's accumulator columns before column `at`, which is relative to column 2t. Of 64
// columns a lane holds 16 in each of two rows: 8n + 2t and 8n + 2t + 1.
__device__ inline unsigned lane_columns_before(int at) {
  at = min(max(at, 0), kPart);
  return (1u << (at / 8 * 2 + min(at % 8, 2))) - 1;
}

// Sets masked scores to -inf. s: accumulators of 64 kParts columns for rows `row` and `row` + 8.
template <Stationary owner, int kParts>
__device__ inline void mask_rows(Sums<kPart * kParts>& s, const HeadSegment& segment, const TileCoord& tile, int row,
                                 int consumer) {
  if (all_whole<kParts>(tile.marks, consumer)) return;
  Columns seen{}, next{};  // columns that the lane's two rows see
  // Not unrolled for queries: their columns() divides integers, which takes many instructions.
#pragma unroll(owner == Stationary::q ? 1 : 2)
  for (int half = 0; half < 2; ++half) seen = next, next = segment.columns<owner>(row + 8 * half);
#pragma unroll
  for (int half = 0; half < 2; ++half, seen = next) {
#pragma unroll
    for (int part = 0; part < kParts; ++part) {
      if (is_whole(tile.marks, part, consumer)) continue;
      const int mine = tile.column[part] + lane() % 4 * 2;
      const auto before = [&](int column) { return lane_columns_before(column - mine); };
      unsigned bits = before(seen.end) & ~before(seen.first) & ~(before(seen.hole_end) & ~before(seen.hole));
      if (!is_wanted(tile.marks, part, consumer)) bits = 0;
#pragma unroll
      for (int i = 0; i < 16; ++i)
        if ((bits >> i & 1) == 0) s[4 * (part * 8 + i / 2) + 2 * half + i % 2] = -INFINITY;
    }
  }
}

// Converts f32 accumulators to bf16 A-operand fragments.
template <int kColumns>
__device__ inline void as_fragments(OperandA<kColumns>& p, const Sums<kColumns>& s) {
#pragma unroll
  for (int k = 0; k < p.kSteps; ++k)
#pragma unroll
    for (int i = 0; i < 4; ++i) p.data[k][i] = pack_bf16(s[8 * k + 2 * i], s[8 * k + 2 * i + 1]);
}

// Announces the bytes of these tiles, which TMA loads will signal on this barrier. Called by a converged
// warp before it issues the loads.
template <class... Tiles>
__device__ inline void expect_tx(Barrier& full, const Tiles&...) {
  if (lane() == 0) full.arrive_expect_tx((Tiles::kBytes + ...));
  __syncwarp();
}

// Launchers, each defined in its own translation unit. keys: dropout keys (dropout.cuh), undefined without dropout.
template <int kDim, int kConsumers, bool drops>
void run_forward(const Attention&, const BranchPass&, const Tensor& keys, const ExecContext&);
template <Stationary owner, int kDim, bool drops>
void run_backward(const AttentionBackward&, const BranchPass&, const RowStatistics&, const ExecContext&);
// Computes dq, dk and dv in one kernel, for passes whose rows see intervals, or for block lists. With lists,
// dq is accumulated in any order.
template <int kDim, bool drops>
void run_fused(const AttentionBackward&, const BranchPass&, const RowStatistics&, const ExecContext&);

// Returns the thread block's dynamic shared memory, aligned for tiles. The launch must request kAlignment extra bytes.
constexpr int kAlignment = 1024;
template <class Memory>
__device__ inline Memory& aligned(unsigned char* memory) {
  return *reinterpret_cast<Memory*>(memory + (-shared_address(memory) & (kAlignment - 1)));
}

// Returns the number of thread blocks of a persistent grid for `work` work items: at most one per SM.
std::int64_t grid_blocks(std::int64_t work, const ExecContext&);

}  // namespace ring::cuda::sm90
