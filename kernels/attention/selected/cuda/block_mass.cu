// Sums attention probabilities P by blocks. A thread block owns a block of queries of one KV head and walks the kept
// blocks of keys once per query head. Each row of the mass thus has one writer, and nothing is added across thread
// blocks. The cost is one GEMM over the kept pairs, half of the forward: on tensor cores in bf16, else with plain FMAs.

#include "kernels/attention/selected/block_mass.h"

#include "kernels/attention/cuda/documents.cuh"
#include "kernels/attention/cuda/simt.cuh"
#include "kernels/attention/cuda/tile.cuh"

namespace ring::cuda {
namespace {

constexpr int kColumns = 64;  // keys per tile

template <class T>
struct MassParams {
  HeadsOf<const T> q, k;
  const float* lse;
  float* mass;
  SelectedBlocks selected;
  std::int64_t tokens;
  int dim, group, block;  // group: query heads per KV head
  float factor;           // attention scale * log2(e)
  bool adds;              // true if the mass is accumulated instead of overwritten
  bool whole_queries;     // true if all queries of a block are in the call
};

// Return the first block that has queries of a document in this call, and the number of such blocks.
RING_HOST_DEVICE int first_block(const SegmentPair& s, int block) { return s.q_first / block; }
RING_HOST_DEVICE int query_blocks(const SegmentPair& s, int block) {
  return s.q_first < s.q_end ? (s.q_end - 1) / block + 1 - first_block(s, block) : 0;
}

// Rows that a thread block owns: queries at positions [first, end) of a document, all in block `own`. `rows`: size of
// the whole block, counted in keys unless the call has all queries of the block (whole_queries).
struct Owned {
  SegmentPair piece;
  int kv_head, own, first, end, rows;

  // Takes the blocks in reverse order: the last blocks keep the most columns, so they should start first.
  template <class T>
  __device__ Owned(const Documents<SegmentPair>& documents, const MassParams<T>& p)
      : kv_head(static_cast<int>(blockIdx.y)) {
    const int at = documents.before[documents.count] - 1 - static_cast<int>(blockIdx.x), d = documents.find(at);
    piece = documents.rows[d], own = at - documents.before[d] + first_block(piece, p.block);
    first = max(own * p.block, piece.q_first), end = min((own + 1) * p.block, piece.q_end);
    rows = p.whole_queries ? end - first : min((own + 1) * p.block, piece.k_end) - max(own * p.block, piece.k_first);
  }
  __device__ int row() const { return piece.block_row + own; }
  __device__ std::int64_t query(int position) const { return std::int64_t{piece.q_row} + position; }
  __device__ std::int64_t key(int position) const { return std::int64_t{piece.k_row} + position; }
  __device__ Range queries(int from) const { return Range{piece.q_first, piece.q_end}.from(from); }
  __device__ Range keys(int from) const { return Range{piece.k_first, piece.k_end}.from(from); }
};

// The column tiles that a row of a selection keeps, in ascending order. Each kept block has `per_block` tiles.
struct KeptTiles {
  const std::uint32_t* kept;
  int per_block, begin, end;  // tiles [begin, end) have keys of the call, up to the last query

  __device__ int key(int tile) const {
    return (static_cast<int>(kept[tile / per_block]) * per_block + tile % per_block) * kColumns;
  }
};

template <class T>
__device__ KeptTiles tiles_of(const Owned& at, const MassParams<T>& p) {
  const SelectedBlocks& s = p.selected;
  const auto from = [&](int block) { return s.first_from(at.row(), at.kv_head, block); };
  const int per_block = p.block / kColumns, last = min(at.end, at.piece.k_end) - 1, block = last / p.block;
  // If the row keeps the block that holds the last key, the tiles of that block end with the last key.
  const int end = min(from(block + 1) * per_block, from(block) * per_block + last / kColumns + 1 - block * per_block);
  return {s.row(at.row(), at.kv_head), per_block, from(at.piece.k_first / p.block) * per_block, end};
}

// Returns the log-sum-exp in base 2; inf, which makes P 0, for rows that are out of range or see no key.
template <class T>
__device__ float shift_of(const MassParams<T>& p, const Owned& at, int head, int position) {
  if (position < at.first || position >= at.end) return INFINITY;
  const float lse = p.lse[head * p.tokens + at.query(position)];
  return lse == -INFINITY ? INFINITY : lse * kLog2E;
}

template <class T>
__device__ float* start_row(const MassParams<T>& p, const Owned& at) {
  float* const mass = p.mass + p.selected.offset(at.row(), at.kv_head);
  for (int n = static_cast<int>(threadIdx.x); !p.adds && n < p.selected.room; n += static_cast<int>(blockDim.x))
    mass[n] = 0.0f;
  __syncthreads();
  return mass;
}

// Per-warp sums of a tile, which one thread adds in the order of the warps.
template <int kWarps>
struct TileSums {
  float sums[2][kWarps];

  __device__ void put(int turn, float of_lane) {
    const float sum = warp_sum(of_lane);
    if (threadIdx.x % kWarp == 0) sums[turn][threadIdx.x / kWarp] = sum;
  }
  // Adds share * (sum of the tile) to `mass`. Requires a barrier after put().
  __device__ void add_to(float& mass, int turn, float share) const {
    if (threadIdx.x != 0) return;
    float sum = 0;
    for (int w = 0; w < kWarps; ++w) sum += sums[turn][w];
    mass += sum * share;
  }
};

// Sizes for blocks of 64 kTiles queries, which four warps share: 16 kTiles rows each.
template <int kDim, int kTiles>
struct MmaShape {
  static constexpr int kWarps = 4, kThreads = kWarps * kWarp, kRows = 16 * kTiles * kWarps;
  static constexpr int kQueries = kRows * kPitch<kDim>, kStage = kColumns * kPitch<kDim>;  // bytes
  static constexpr int kBytes = kQueries + 2 * kStage;
};

// Returns the sum of P over a lane's scores. row, column: positions of the first row and column of the warp's tile.
template <int kM, int kN>
__device__ float weights(const float (&s)[kM][kN][4], const float (&shift)[kM][2], float factor, int row, int column,
                         int first) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  float sum = 0;
#pragma unroll
  for (int m = 0; m < kM; ++m)
#pragma unroll
    for (int n = 0; n < kN; ++n)
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int t = row + m * 16 + i / 2 * 8 + lane / 4, u = column + n * 8 + lane % 4 * 2 + i % 2;
        const float weight = fast_exp2(fmaf(s[m][n][i], factor, -shift[m][i / 2]));
        sum += u >= first && u <= t ? weight : 0.0f;
      }
  return sum;
}

template <int kDim, int kTiles>
__global__ __launch_bounds__(MmaShape<kDim, kTiles>::kThreads) void mma_mass(
    const __grid_constant__ Documents<SegmentPair> documents, const __grid_constant__ MassParams<Bf16> p) {
  using Shape = MmaShape<kDim, kTiles>;
  extern __shared__ float4 shared[];
  __shared__ TileSums<Shape::kWarps> tile_sums;
  const Owned at(documents, p);
  float* const mass = start_row(p, at);
  const KeptTiles tiles = tiles_of(at, p);
  if (tiles.begin >= tiles.end) return;  // no kept block has any of these keys
  const float share = 1.0f / static_cast<float>(at.rows * p.group);
  const int lane = static_cast<int>(threadIdx.x) % kWarp, start = at.own * p.block;
  const int in_block = static_cast<int>(threadIdx.x) / kWarp * 16 * kTiles;  // first row of this warp
  unsigned char *const memory = reinterpret_cast<unsigned char*>(shared), *const stages = memory + Shape::kQueries;
  const auto load_keys = [&](int turn, int tile) {
    const int key = tiles.key(tile);
    load_tile<kDim, kColumns, Shape::kThreads>(stages + turn * Shape::kStage, p.k.at(at.key(key), at.kv_head), p.k.row,
                                               at.keys(key), p.dim);
    cp_async_commit();
  };
  for (int head = at.kv_head * p.group; head < (at.kv_head + 1) * p.group; ++head) {
    load_tile<kDim, Shape::kRows, Shape::kThreads>(memory, p.q.at(at.query(start), head), p.q.row, at.queries(start),
                                                   p.dim);
    int turn = 0;
    load_keys(turn, tiles.begin);
    float shift[kTiles][2];
#pragma unroll
    for (int i = 0; i < 2 * kTiles; ++i)
      shift[i / 2][i % 2] = shift_of(p, at, head, start + in_block + i / 2 * 16 + i % 2 * 8 + lane / 4);
    for (int tile = tiles.begin; tile < tiles.end; ++tile, turn ^= 1) {
      cp_async_wait<0>();
      // The tile has arrived, the other stage has been read, and the sums of the previous tile are written.
      __syncthreads();
      if (tile > tiles.begin) tile_sums.add_to(mass[(tile - 1) / tiles.per_block], turn ^ 1, share);
      if (tile + 1 < tiles.end) load_keys(turn ^ 1, tile + 1);
      float s[kTiles][kColumns / 8][4];
      clear(s);
      gemm_nt<kDim>(s, shared_address(memory) + in_block * kPitch<kDim> + rows_first<kDim>(lane),
                    shared_address(stages) + turn * Shape::kStage + columns_first<kDim>(lane));
      tile_sums.put(turn, weights(s, shift, p.factor, start + in_block, tiles.key(tile), at.piece.k_first));
    }
    __syncthreads();  // the sums are written, and the queries have been read
    tile_sums.add_to(mass[(tiles.end - 1) / tiles.per_block], turn ^ 1, share);
    __syncthreads();
  }
}

constexpr int kMassR = 4, kMassRows = kSide * kMassR;  // kMassRows: queries of a block, and keys of a tile
static_assert(kMassRows == kColumns);

// Computes the mass with plain FMAs. A block of 128 rows is processed as two halves, one after the other.
template <class T>
__global__ __launch_bounds__(kSimtThreads) void simt_mass(const __grid_constant__ Documents<SegmentPair> documents,
                                                          const __grid_constant__ MassParams<T> p) {
  extern __shared__ float4 shared[];
  __shared__ TileSums<kSimtThreads / kWarp> tile_sums;
  float *queries = reinterpret_cast<float*>(shared), *keys = queries + kMassRows * simt_pitch(p.dim);
  const Owned at(documents, p);
  float* const mass = start_row(p, at);
  const KeptTiles tiles = tiles_of(at, p);
  const float share = 1.0f / static_cast<float>(at.rows * p.group);
  const Lanes lanes;
  for (int head = at.kv_head * p.group; head < (at.kv_head + 1) * p.group; ++head)
    for (int start = at.own * p.block; start < at.end; start += kMassRows) {
      __syncthreads();  // the previous queries have been read
      load_rows<kMassRows>(queries, p.q.at(at.query(start), head), p.q.row, at.queries(start), p.dim);
      for (int tile = tiles.begin; tile < tiles.end; ++tile) {
        const int key = tiles.key(tile);
        __syncthreads();  // the previous keys and sums have been read
        load_rows<kMassRows>(keys, p.k.at(at.key(key), at.kv_head), p.k.row, at.keys(key), p.dim);
        __syncthreads();
        float s[kMassR][kMassR], sum = 0;
        dot_rows<kMassR>(s, queries, keys, p.dim);
#pragma unroll
        for (int i = 0; i < kMassR; ++i) {
          const int t = start + lanes.y * kMassR + i;
          const float shift = shift_of(p, at, head, t);
#pragma unroll
          for (int j = 0; j < kMassR; ++j) {
            const int u = key + lanes.x + kSide * j;
            const float weight = exp2f(__fmul_rn(s[i][j], p.factor) - shift);
            sum += u >= at.piece.k_first && u <= t ? weight : 0.0f;
          }
        }
        tile_sums.put(0, sum);
        __syncthreads();
        tile_sums.add_to(mass[tile / tiles.per_block], 0, share);
      }
    }
}

// Launches kernel(documents, params), one thread block per block of queries and KV head.
template <class T>
void launch_mass(const BlockMass& a, void (*kernel)(Documents<SegmentPair>, MassParams<T>), int threads,
                 std::size_t shared_bytes, const ExecContext& ctx) {
  check(a);
  const std::int64_t kv_heads = a.k.dim(1);
  const std::int32_t block = a.pattern.blocks->block();
  RING_CHECK(kv_heads <= kMaxGridY, "block_mass: ", kv_heads, " KV heads are more than ", kMaxGridY);
  const MassParams<T> p{heads_of<const T>(a.q),
                        heads_of<const T>(a.k),
                        device_data<float>(a.lse),
                        device_data<float>(a.mass),
                        SelectedBlocks(a.selection),
                        a.q.dim(0),
                        static_cast<int>(a.q.dim(2)),
                        static_cast<int>(a.q.dim(1) / kv_heads),
                        block,
                        a.scale * kLog2E,
                        a.of_parts(),
                        a.parts_of_keys};
  const auto blocks = [&](const SegmentPair& s) { return query_blocks(s, block); };
  for_documents(
      segment_pairs_of(passes_of(a.pattern).front(), a.pattern, a.query_spans(), a.spans, a.selection.rows), blocks,
      [&](const Documents<SegmentPair>& some) {
        const Launch shape{grid_of(some.before[some.count], kv_heads), static_cast<unsigned>(threads), shared_bytes};
        launch(ctx, shape, kernel, some, p);
      });
}

template <int kDim>
void run_mma_of(const BlockMass& a, const ExecContext& ctx) {
  if (a.pattern.blocks->block() == 64)
    return launch_mass<Bf16>(a, mma_mass<kDim, 1>, MmaShape<kDim, 1>::kThreads, MmaShape<kDim, 1>::kBytes, ctx);
  launch_mass<Bf16>(a, mma_mass<kDim, 2>, MmaShape<kDim, 2>::kThreads, MmaShape<kDim, 2>::kBytes, ctx);
}

void run_mma(const BlockMass& a, const ExecContext& ctx) {
  const std::int64_t dim = a.q.dim(2);
  return dim <= 64 ? run_mma_of<64>(a, ctx) : dim <= 128 ? run_mma_of<128>(a, ctx) : run_mma_of<256>(a, ctx);
}

// Returns true if q and k are bf16, in rows of aligned 16-byte chunks, with a head dim of at most 256.
bool supports_mma(const BlockMass& a, const ExecContext&) {
  const auto fits = [](const Tensor& t) {
    return t.defined() && t.dtype() == DType::bf16 && t.shape().size() == 3 && t.stride(2) == 1 &&
           is_aligned(t.raw()) && t.stride(0) % 8 == 0 && t.stride(1) % 8 == 0 && t.dim(2) <= 256;
  };
  return fits(a.q) && fits(a.k);
}

void run_simt(const BlockMass& a, const ExecContext& ctx) {
  const std::size_t bytes =
      sizeof(float) * 2 * kMassRows * static_cast<std::size_t>(simt_pitch(static_cast<int>(a.q.dim(2))));
  visit_float("block_mass", a.q.dtype(), [&]<class T>() { launch_mass<T>(a, simt_mass<T>, kSimtThreads, bytes, ctx); });
}
bool supports_simt(const BlockMass& a, const ExecContext&) { return a.q.defined() && a.q.dim(2) <= 256; }

const bool added_block_mass[] = {block_mass_kernel.add(Backend::cuda, {"own_mma", run_mma, supports_mma, 10}),
                                 block_mass_kernel.add(Backend::cuda, {"own_simt", run_simt, supports_simt, 0})};

}  // namespace
}  // namespace ring::cuda
