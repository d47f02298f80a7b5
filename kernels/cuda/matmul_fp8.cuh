#pragma once
// Blockwise or tensorwise GEMMs of e4m3 matrices for Hopper. A thread block has three warpgroups. In the first one, a
// producer warp issues TMA loads of tiles of 128 columns of K; the other two are consumers. After each 128 of K, a
// consumer scales the tensor cores' accumulators (tensorwise: only the results) and adds them to its own f32
// accumulators, while the GEMMs of the other consumer run. Thread blocks are persistent: while the epilogue of one tile
// still runs, the operands of the next tile are loaded.

#include "kernels/cuda/device/bulk_reduce.cuh"
#include "kernels/cuda/device/matrix_copy.cuh"
#include "kernels/cuda/device/mma.cuh"
#include "kernels/cuda/device/wgmma_fp8.cuh"
#include "kernels/cuda/fp8.cuh"

namespace ring::cuda::fp8 {

constexpr int kGroup = 128, kConsumers = 2, kThreads = kGroup * (1 + kConsumers);
constexpr int kDepth = static_cast<int>(kFp8Block), kColumns = 128;  // tile size: along K; columns of c
constexpr int kWaveRows = 64;                                        // rows of one WGMMA
using Sums = RegTile<float, kWaveRows, kColumns>;
constexpr int kTileGroup = 2048;  // rows of c whose tiles run at about the same time, so that operands stay in L2
constexpr int kProducerRegisters = 24, kConsumerRegisters = 240;

struct MatmulParams {
  CUtensorMap a, b, a_scales;      // a_scales: only if blockwise
  const float *a_scale, *b_scale;  // a_scale: only if tensorwise; b_scale: of b's first block, or of all of b
  std::int64_t b_scale_stride;
  CUtensorMap c;
  int blocks;  // number of blocks along K
  int tiles_down, tiles_across;
  bool accumulate;
  int rows, columns;                     // size of c
  const __nv_bfloat16 *bias, *residual;  // added to bf16 results; may be null
  std::int64_t residual_stride;
};

// The epilogue writes c in panels of 8 rows x 128 bytes. A warp stages each panel in shared memory and issues a TMA
// store. kPanels: slots for panels that each warp has outside the pipeline stages.
constexpr int kPanelRows = 8, kPanelBytes = 128, kPanelSize = kPanelRows * kPanelBytes, kPanels = 3;
constexpr int kConsumerWarps = kConsumers * kGroup / 32;
constexpr int kConsumersBarrier = 1;

// kWaves: WGMMA tiles of 64 rows per consumer, adjacent to each other. kTensorwise: a and b have one scale each;
// otherwise a has blocks of rows, and b square blocks. kHalf: c is bf16, otherwise f32.
template <int kWaves, bool kTensorwise, bool kHalf>
struct MatmulMemory {
  static constexpr int kRows = kConsumers * kWaves * kWaveRows, kStages = kWaves == 2 ? 4 : 6;
  // kHeld: pipeline stages that the epilogue uses as additional panel slots. They held the tile's last operands, which
  // have been read by then. kPanelsInA, kPanelsInB: panel slots of a warp in a and in b of one stage.
  static constexpr int kHeld = kHalf ? 1 : 2, kPanelsInA = kRows * kDepth / kPanelSize / kConsumerWarps;
  static constexpr int kPanelsInB = kColumns * kDepth / kPanelSize / kConsumerWarps;
  using TileA = SmemTile<E4m3, kRows, kDepth>;
  using TileB = SmemTile<E4m3, kColumns, kDepth>;
  static constexpr int kStageBytes = TileA::kBytes + TileB::kBytes + (kTensorwise ? 0 : 4 * kRows);

  TileA a[kStages];
  TileB b[kStages];
  unsigned char staged[kConsumerWarps][kPanels][kPanelSize];
  float a_scales[kTensorwise ? 1 : kStages][kRows];
  Barrier full[kStages], empty[kStages];

  __device__ void init() {
    for (int s = 0; s < kStages; ++s) full[s].init(1), empty[s].init(kConsumerWarps);
    fence_barrier_init();
  }
};

struct Tile {
  int row, column;
};
// Iterates over the tiles of a thread block. Within a group of rows, tiles go down the rows first, then across the
// columns.
template <int kRows>
struct Tiles {
  const MatmulParams& p;
  int index = static_cast<int>(blockIdx.x);

  __device__ explicit Tiles(const MatmulParams& p) : p(p) {}
  __device__ bool ended() const { return index >= p.tiles_down * p.tiles_across; }
  __device__ void advance() { index += static_cast<int>(gridDim.x); }
  __device__ Tile tile() const {
    constexpr int kDown = kTileGroup / kRows;
    const int group = index / (kDown * p.tiles_across), first = group * kDown, down = min(kDown, p.tiles_down - first);
    const int inside = index - first * p.tiles_across;
    return {(first + inside % down) * kRows, inside / down * kColumns};
  }
};

// The producer: loads the operands of each tile as stages become empty. Called by one warp.
template <bool kTensorwise, class Memory>
__device__ void produce(const MatmulParams& p, Memory& m) {
  PipelineState<Memory::kStages> pipe;
  for (Tiles<Memory::kRows> tiles(p); !tiles.ended(); tiles.advance()) {
    const Tile tile = tiles.tile();
    for (int block = 0; block < p.blocks; ++block, pipe.advance()) {
      const int s = pipe.index;
      m.empty[s].wait(pipe.phase ^ 1);
      if (threadIdx.x % 32 == 0) m.full[s].arrive_expect_tx(Memory::kStageBytes);
      __syncwarp();
      tma_load(m.a[s].view().address, p.a, block * kDepth, tile.row, m.full[s]);
      tma_load(m.b[s].view().address, p.b, block * kDepth, tile.column, m.full[s]);
      if (!kTensorwise) tma_load(shared_address(m.a_scales[s]), p.a_scales, tile.row, block, m.full[s]);
    }
  }
}

template <int kWaves, bool kTensorwise, bool kHalf>
struct MatmulConsumer {
  using Memory = MatmulMemory<kWaves, kTensorwise, kHalf>;
  const MatmulParams& p;
  Memory& m;
  const int consumer, warp = static_cast<int>(threadIdx.x) % kGroup / 32, lane = static_cast<int>(threadIdx.x) % 32;
  PipelineState<Memory::kStages> pipe;
  int held = 0, held_end = 0;  // the `held` stages before stage held_end hold results of the previous tile
  Sums sums[kWaves], parts;

  __device__ MatmulConsumer(const MatmulParams& p, Memory& m, int consumer) : p(p), m(m), consumer(consumer) {}

  __device__ void run() {
    for (Tiles<Memory::kRows> tiles(p); !tiles.ended(); tiles.advance()) {
      const Tile tile = tiles.tile();
#pragma unroll
      for (int w = 0; w < kWaves; ++w) clear(sums[w]);
      const float* square = kTensorwise ? nullptr : p.b_scale + tile.column / kColumns * p.b_scale_stride;
      // Keeps nvcc from computing this address in each iteration before most WGMMAs, which costs 2 to 17 % of the time.
      if constexpr (!kTensorwise) asm volatile("" : "+l"(square));
      if constexpr (kHalf) prefetch_residual(tile);
      float next = kTensorwise ? 0 : __ldg(square);
      const int hold = min(Memory::kHeld, p.blocks);
      for (int block = 0; block < p.blocks; ++block, pipe.advance()) {
        const float scale = next;
        if (!kTensorwise && block + 1 < p.blocks) next = __ldg(square + block + 1);
        add_block(scale, block < p.blocks - hold);
        if (block == 0) release_held();
      }
      if constexpr (kTensorwise) scale_sums(__ldg(p.a_scale) * __ldg(p.b_scale));
      if constexpr (kHalf) add_bias_and_residual(tile);
      held = hold, held_end = pipe.index;
      named_barrier_sync<kConsumers * kGroup>(kConsumersBarrier);  // all GEMMs have finished reading the held stages
      if (hold == Memory::kHeld)
        write<Memory::kHeld>(tile);
      else
        write<1>(tile);
    }
    if (lane == 0) bulk_wait_read<0>();
  }

 private:
  // Returns the lane's first row of a wave in a tile; its second row is 8 further down.
  __device__ int row(int wave) const { return (consumer * kWaves + wave) * kWaveRows + 16 * warp + lane / 4; }

  __device__ int held_stage(int i) const { return (held_end + Memory::kStages - 1 - i) % Memory::kStages; }
  // Releases the stages that hold results, once the TMA has read them.
  __device__ void release_held() {
    if (held == 0) return;
    if (lane == 0) {
      bulk_wait_read<0>();
      for (int i = 0; i < held; ++i) m.empty[held_stage(i)].arrive();
    }
    __syncwarp();
    held = 0;
  }

  __device__ void add_block(float square, bool done) {
    const int s = pipe.index;
    m.full[s].wait(pipe.phase);
#pragma unroll
    for (int w = 0; w < kWaves; ++w) {
      fence_operand(parts);
      wgmma_fence();
      mm_ABt(parts, row_block<kWaveRows>(m.a[s].view(), consumer * kWaves + w), m.b[s].view());
      wgmma_commit();
      float scales[2];
      if constexpr (!kTensorwise)
        scales[0] = m.a_scales[s][row(w)] * square, scales[1] = m.a_scales[s][row(w) + 8] * square;
      wgmma_wait<0>();
      fence_operand(parts);
      if (w == kWaves - 1 && done) release(s);
      if constexpr (kTensorwise)
        add(sums[w]);
      else
        promote(sums[w], scales);
    }
  }
  __device__ void release(int s) {
    __syncwarp();
    if (lane == 0) m.empty[s].arrive();
  }
  __device__ void add(Sums& to) {
#pragma unroll
    for (int i = 0; i < to.kElements; ++i) to[i] += parts[i];
  }
  __device__ void scale_sums(float scale) {
#pragma unroll
    for (int w = 0; w < kWaves; ++w)
#pragma unroll
      for (float& sum : sums[w].data) sum *= scale;
  }
  __device__ void promote(Sums& to, const float (&scales)[2]) {
#pragma unroll
    for (int i = 0; i < to.kElements; ++i) to[i] = fmaf(parts[i], scales[i / 2 % 2], to[i]);
  }

  // Requests the tile's residual from global memory, so that the epilogue finds it in the L2 cache.
  __device__ void prefetch_residual(const Tile& tile) const {
    constexpr int kLine = 64, kLines = kColumns / kLine;  // kLine: elements in 128 bytes
    if (!p.residual) return;
#pragma unroll
    for (int i = 0; i < Memory::kRows * kLines; i += kConsumers * kGroup) {
      const int line = i + static_cast<int>(threadIdx.x) - kGroup;
      const int row = tile.row + line / kLines, column = tile.column + line % kLines * kLine;
      if (row < p.rows && column < p.columns)
        asm volatile("prefetch.global.L2 [%0];" ::"l"(p.residual + row * p.residual_stride + column));
    }
  }
  // Adds two bf16 values to neighbouring sums.
  __device__ static void add_pair(float* sums, std::uint32_t pair) {
    sums[0] += __uint_as_float(pair << 16), sums[1] += __uint_as_float(pair & 0xffff0000u);
  }
  // A lane's sums 4 i + 2 half + {0, 1} belong to columns 8 i + 2 (lane % 4) + {0, 1} of row `row(wave) + 8 half`. All
  // of a wave's residual is loaded before any of it is used.
  __device__ void add_bias_and_residual(const Tile& tile) {
    const int first = tile.column + 2 * (lane % 4);
    const auto pair_at = [&](const __nv_bfloat16* row, int i) {
      return first + 8 * i < p.columns ? __ldg(reinterpret_cast<const unsigned*>(row + first + 8 * i)) : 0u;
    };
#pragma unroll
    for (int w = 0; w < kWaves && p.residual; ++w) {
      std::uint32_t pairs[2][16];
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int at = tile.row + row(w) + 8 * half;
        const __nv_bfloat16* from = p.residual + min(at, p.rows - 1) * p.residual_stride;
#pragma unroll
        for (int i = 0; i < 16; ++i) pairs[half][i] = pair_at(from, i);
      }
#pragma unroll
      for (int i = 0; i < 32; ++i) add_pair(&sums[w][4 * (i % 16) + 2 * (i / 16)], pairs[i / 16][i % 16]);
    }
    if (!p.bias) return;
#pragma unroll
    for (int i = 0; i < 16; ++i) {
      const std::uint32_t pair = pair_at(p.bias, i);
#pragma unroll
      for (int w = 0; w < kWaves; ++w) add_pair(&sums[w][4 * i], pair), add_pair(&sums[w][4 * i + 2], pair);
    }
  }

  // Returns the shared-memory address of a panel slot. A warp's slots outside the stages come first, then those in a
  // and b of the held stages.
  __device__ std::uint32_t place(int slot) const {
    constexpr int kEach = Memory::kPanelsInA + Memory::kPanelsInB;
    const int all = consumer * kGroup / 32 + warp, i = slot - kPanels, k = i % kEach;
    if (i < 0) return shared_address(m.staged[all][slot]);
    const int s = held_stage(i / kEach);
    if (k < Memory::kPanelsInA) return m.a[s].view().address + (all * Memory::kPanelsInA + k) * kPanelSize;
    return m.b[s].view().address + (all * Memory::kPanelsInB + k - Memory::kPanelsInA) * kPanelSize;
  }

  // Epilogue: stages the warp's results and issues TMA stores, while the first operands of the next tile arrive. kHold:
  // number of held stages.
  template <int kHold>
  __device__ void write(const Tile& tile) {
    constexpr int kEach = kPanelBytes / (kHalf ? 2 : 4);  // columns per panel
    constexpr int kSlots = kPanels + kHold * (Memory::kPanelsInA + Memory::kPanelsInB);
    int panel = 0;
#pragma unroll
    for (int wave = 0; wave < kWaves; ++wave)
#pragma unroll
      for (int half = 0; half < 2; ++half)
#pragma unroll
        for (int column = 0; column < kColumns; column += kEach, ++panel) {
          const int row = tile.row + (consumer * kWaves + wave) * kWaveRows + 16 * warp + kPanelRows * half;
          const std::uint32_t to = place(panel % kSlots);
          if (panel >= kSlots) {
            if (lane == 0) bulk_wait_read<kSlots - 1>();
            __syncwarp();
          }
          stage(to, &sums[wave][column / 2 + 2 * half]);
          fence_proxy_async();
          __syncwarp();
          if (lane == 0) {
            if (p.accumulate)
              tma_add(p.c, tile.column + column, row, to);
            else
              tma_store(p.c, tile.column + column, row, to);
            bulk_commit();
          }
        }
  }
  // Writes one row of each of a lane's fragments to a panel, two elements per 8 columns. 16-byte chunks are xored with
  // the row (TMA's 128-byte swizzle).
  __device__ void stage(std::uint32_t to, const float* x) {
    if constexpr (kHalf) {
#pragma unroll
      for (int i = 0; i < 8; i += 4, x += 16) {
        const std::uint32_t packed[4] = {pack_bf16(x[0], x[1]), pack_bf16(x[4], x[5]), pack_bf16(x[8], x[9]),
                                         pack_bf16(x[12], x[13])};
        const int row = lane % 8, piece = i + lane / 8;
        stmatrix(to + row * kPanelBytes + (piece ^ row) * 16, packed);
      }
    } else {
#pragma unroll
      for (int i = 0; i < 4; ++i, x += 4) {
        const int row = lane / 4, piece = 2 * i + lane % 4 / 2;
        asm volatile(
            "st.shared.v2.f32 [%0], {%1, %2};" ::"r"(to + row * kPanelBytes + (piece ^ row) * 16 + lane % 2 * 8),
            "f"(x[0]), "f"(x[1])
            : "memory");
      }
    }
  }
};

constexpr int kAlignment = 1024;  // alignment of tiles in bytes; the launch must request kAlignment extra bytes

template <int kWaves, bool kTensorwise, bool kHalf>
__global__ __launch_bounds__(kThreads, 1) void matmul_fp8(const __grid_constant__ MatmulParams p) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  extern __shared__ unsigned char memory[];
  using Memory = MatmulMemory<kWaves, kTensorwise, kHalf>;
  static_assert(sizeof(Memory) + kAlignment <= 227 << 10);
  auto& m = *reinterpret_cast<Memory*>(memory + (-shared_address(memory) & (kAlignment - 1)));
  if (threadIdx.x == 0) m.init();
  __syncthreads();
  const int group = __shfl_sync(0xffffffffu, static_cast<int>(threadIdx.x) / kGroup, 0);
  if (group == 0) {
    setmaxnreg_dec<kProducerRegisters>();
    if (threadIdx.x < 32) produce<kTensorwise>(p, m);
  } else {
    setmaxnreg_inc<kConsumerRegisters>();
    MatmulConsumer<kWaves, kTensorwise, kHalf>(p, m, group - 1).run();
  }
#else
  __trap();  // compiled for a different architecture; supports() rejects such devices
#endif
}

}  // namespace ring::cuda::fp8
