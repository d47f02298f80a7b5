#pragma once
// Products of blockwise e4m3 matrices for Hopper. A thread block has three warp groups: one warp of the first, the
// producer, asks the TMA for tiles of 128 columns of K; the other two, the consumers, multiply them. After each 128 of
// K, a consumer scales the sums of the tensor cores and adds them to sums of its own in f32, while the other consumer's
// products run. Blocks are persistent: while the results of one tile are still being written, the operands of the next
// one come in.

#include "kernels/cuda/device/matrix_copy.cuh"
#include "kernels/cuda/device/mma.cuh"
#include "kernels/cuda/device/wgmma_fp8.cuh"
#include "kernels/cuda/fp8.cuh"

namespace ring::cuda::fp8 {

constexpr int kGroup = 128, kConsumers = 2, kThreads = kGroup * (1 + kConsumers);
constexpr int kDepth = static_cast<int>(kFp8Block), kColumns = 128;  // of a tile
constexpr int kWaveRows = 64;                                        // rows that a consumer multiplies at once
constexpr int kWaveBytes = kWaveRows * kDepth;
constexpr int kTileGroup = 2048;  // rows of c whose tiles follow each other, so that the operands stay in the L2 cache
constexpr int kProducerRegisters = 24, kConsumerRegisters = 240;

struct MatmulParams {
  CUtensorMap a, a_scales, b, b_scales;  // b_scales: if b has blocks of rows
  const float* squares;                  // the scales of b otherwise
  std::int64_t squares_stride;
  void* c;
  std::int64_t stride;
  int rows, columns, blocks;  // of c; of K
  int tiles_down, tiles_across;
  bool accumulate;
};

// kWaves: of each consumer, whose rows are neighbours. squares: the blocks of b; c is then bf16, otherwise f32.
template <int kWaves, bool squares>
struct MatmulMemory {
  static constexpr int kRows = kConsumers * kWaves * kWaveRows, kStages = kWaves == 2 ? 4 : 6;
  static constexpr int kStageBytes = (kRows + kColumns) * kDepth + 4 * (kRows + (squares ? 0 : kColumns));
  static constexpr int kPiece = 64;  // columns that a warp stages at a time

  unsigned char a[kStages][kRows * kDepth], b[kStages][kColumns * kDepth];
  float a_scales[kStages][kRows], b_scales[squares ? 1 : kStages][kColumns];
  uint4 staged[squares ? kConsumers * kGroup / 32 : 1][16][kPiece / 8];  // bf16, of 16 rows of a warp
  Barrier full[kStages], empty[kStages];

  __device__ void init() {
    for (int s = 0; s < kStages; ++s) full[s].init(1), empty[s].init(kConsumers * kGroup / 32);
    fence_barrier_init();
  }
};

struct Tile {
  int row, column;
};
// The tiles of a group of rows follow each other down the columns.
template <int kRows>
__device__ inline Tile tile_at(const MatmulParams& p, int index) {
  constexpr int kDown = kTileGroup / kRows;
  const int group = index / (kDown * p.tiles_across), first = group * kDown, down = min(kDown, p.tiles_down - first);
  const int inside = index - group * kDown * p.tiles_across;
  return {(first + inside % down) * kRows, inside / down * kColumns};
}

template <class Memory>
__device__ void produce(const MatmulParams& p, Memory& m, bool squares) {
  PipelineState<Memory::kStages> pipe;
  const int tiles = p.tiles_down * p.tiles_across;
  for (int index = static_cast<int>(blockIdx.x); index < tiles; index += static_cast<int>(gridDim.x)) {
    const Tile tile = tile_at<Memory::kRows>(p, index);
    for (int block = 0; block < p.blocks; ++block, pipe.advance()) {
      const int s = pipe.index;
      m.empty[s].wait(pipe.phase ^ 1);
      if (threadIdx.x % 32 == 0) m.full[s].arrive_expect_tx(Memory::kStageBytes);
      __syncwarp();
      tma_load(shared_address(m.a[s]), p.a, block * kDepth, tile.row, m.full[s]);
      tma_load(shared_address(m.b[s]), p.b, block * kDepth, tile.column, m.full[s]);
      tma_load(shared_address(m.a_scales[s]), p.a_scales, tile.row, block, m.full[s]);
      if (!squares) tma_load(shared_address(m.b_scales[s]), p.b_scales, tile.column, block, m.full[s]);
    }
  }
}

template <int kWaves, bool squares>
struct MatmulConsumer {
  using Memory = MatmulMemory<kWaves, squares>;
  const MatmulParams& p;
  Memory& m;
  const int consumer, warp = static_cast<int>(threadIdx.x) % kGroup / 32, lane = static_cast<int>(threadIdx.x) % 32;
  PipelineState<Memory::kStages> pipe;
  float sums[kWaves][64], parts[64];

  __device__ MatmulConsumer(const MatmulParams& p, Memory& m, int consumer) : p(p), m(m), consumer(consumer) {}

  __device__ void run() {
    const int tiles = p.tiles_down * p.tiles_across;
    for (int index = static_cast<int>(blockIdx.x); index < tiles; index += static_cast<int>(gridDim.x)) {
      const Tile tile = tile_at<Memory::kRows>(p, index);
#pragma unroll
      for (int w = 0; w < kWaves; ++w)
#pragma unroll
        for (float& sum : sums[w]) sum = 0;
      const float* square = squares ? p.squares + tile.column / kColumns * p.squares_stride : nullptr;
      float next = squares ? __ldg(square) : 0;
      for (int block = 0; block < p.blocks; ++block, pipe.advance()) {
        const float scale = next;
        if (squares && block + 1 < p.blocks) next = __ldg(square + block + 1);
        add_block(scale);
      }
#pragma unroll
      for (int w = 0; w < kWaves; ++w) write(tile, w);
    }
  }

 private:
  // The lane's first row of a wave in a tile; its second one is 8 further on.
  __device__ int row(int wave) const { return (consumer * kWaves + wave) * kWaveRows + 16 * warp + lane / 4; }

  __device__ void add_block(float square) {
    const int s = pipe.index;
    m.full[s].wait(pipe.phase);
#pragma unroll
    for (int w = 0; w < kWaves; ++w) {
      const MatrixDescriptor a = desc_k_major(shared_address(m.a[s]) + (consumer * kWaves + w) * kWaveBytes);
      const MatrixDescriptor b = desc_k_major(shared_address(m.b[s]));
      fence_operand(parts);
      wgmma_fence();
#pragma unroll
      for (int k = 0; k < kDepth / 32; ++k) wgmma_e4m3(parts, a.after(32 * k), b.after(32 * k), k > 0);
      wgmma_commit();
      const float scales[2] = {m.a_scales[s][row(w)] * (squares ? square : 1),
                               m.a_scales[s][row(w) + 8] * (squares ? square : 1)};
      wgmma_wait<0>();
      fence_operand(parts);
      if (squares && w == kWaves - 1) release(s);
      promote(sums[w], scales, s);
      if (!squares && w == kWaves - 1) release(s);
    }
  }
  __device__ void release(int s) {
    __syncwarp();
    if (lane == 0) m.empty[s].arrive();
  }
  __device__ void promote(float (&to)[64], const float (&scales)[2], int s) {
#pragma unroll
    for (int i = 0; i < 64; i += 4) {
      float2 b = {1, 1};
      if constexpr (!squares) b = *reinterpret_cast<const float2*>(&m.b_scales[s][2 * i + lane % 4 * 2]);
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        to[i + 2 * half] = fmaf(parts[i + 2 * half], scales[half] * b.x, to[i + 2 * half]);
        to[i + 2 * half + 1] = fmaf(parts[i + 2 * half + 1], scales[half] * b.y, to[i + 2 * half + 1]);
      }
    }
  }

  __device__ void write(const Tile& tile, int wave) {
    if constexpr (squares)
      write_bf16(tile, wave);
    else
      write_f32(tile, wave);
  }
  // Rows of 128 bytes go through shared memory; their pieces of 16 bytes are xored with the row against conflicts.
  __device__ void write_bf16(const Tile& tile, int wave) {
    auto& staged = m.staged[consumer * kGroup / 32 + warp];
    auto* c = static_cast<__nv_bfloat16*>(p.c);
    const int first = tile.row + (consumer * kWaves + wave) * kWaveRows + 16 * warp;
#pragma unroll
    for (int column = 0; column < kColumns; column += Memory::kPiece) {
      __syncwarp();
#pragma unroll
      for (int i = 0; i < Memory::kPiece / 8; i += 2) {
        const float* x = &sums[wave][4 * (column / 8 + i)];
        const std::uint32_t packed[4] = {pack_bf16(x[0], x[1]), pack_bf16(x[2], x[3]), pack_bf16(x[4], x[5]),
                                         pack_bf16(x[6], x[7])};
        const int to = lane / 8 % 2 * 8 + lane % 8, piece = i + lane / 16;
        stmatrix(shared_address(&staged[to][piece ^ to % 8]), packed);
      }
      __syncwarp();
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int from = 4 * i + lane / 8, piece = lane % 8, at = tile.column + column + 8 * piece;
        if (first + from < p.rows && at < p.columns)
          *reinterpret_cast<uint4*>(c + (first + from) * p.stride + at) = staged[from][piece ^ from % 8];
      }
    }
  }
  // Four lanes write 32 bytes of a row. Each element is added to once, so that the order of additions does not matter.
  __device__ void write_f32(const Tile& tile, int wave) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int at = tile.row + row(wave) + 8 * half;
      float* c = static_cast<float*>(p.c) + at * p.stride + tile.column + lane % 4 * 2;
#pragma unroll
      for (int i = 0; i < 64; i += 4) {
        if (at >= p.rows || tile.column + 2 * i + lane % 4 * 2 >= p.columns) continue;
        const float2 two = {sums[wave][i + 2 * half], sums[wave][i + 2 * half + 1]};
        if (p.accumulate)
          asm volatile("red.global.add.v2.f32 [%0], {%1, %2};" ::"l"(c + 2 * i), "f"(two.x), "f"(two.y) : "memory");
        else
          *reinterpret_cast<float2*>(c + 2 * i) = two;
      }
    }
  }
};

constexpr int kAlignment = 1024;  // of tiles; whoever launches the kernel asks for so many bytes more

template <int kWaves, bool squares>
__global__ __launch_bounds__(kThreads, 1) void matmul_fp8(const __grid_constant__ MatmulParams p) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  extern __shared__ unsigned char memory[];
  using Memory = MatmulMemory<kWaves, squares>;
  static_assert(sizeof(Memory) + kAlignment <= 227 << 10);
  auto& m = *reinterpret_cast<Memory*>(memory + (-shared_address(memory) & (kAlignment - 1)));
  if (threadIdx.x == 0) m.init();
  __syncthreads();
  const int group = __shfl_sync(0xffffffffu, static_cast<int>(threadIdx.x) / kGroup, 0);
  if (group == 0) {
    setmaxnreg_dec<kProducerRegisters>();
    if (threadIdx.x < 32) produce(p, m, squares);
  } else {
    setmaxnreg_inc<kConsumerRegisters>();
    MatmulConsumer<kWaves, squares>(p, m, group - 1).run();
  }
#else
  __trap();  // compiled for other devices; supports() rules this path out
#endif
}

}  // namespace ring::cuda::fp8
