#pragma once
// Epilogue helpers: how a warp writes its accumulator rows to global memory at the end of a job.

#include "kernels/attention/cuda/sm90.cuh"

namespace ring::cuda::sm90 {

// Transposes within a quad of lanes. r: a lane's bf16 elements of 4 neighbouring blocks of 8 columns. Lane t of the
// quad returns all 8 columns of block t.
__device__ inline uint4 exchange(const std::uint32_t (&r)[4]) {
  const int t = static_cast<int>(threadIdx.x) % 4;
  std::uint32_t out[4];
#pragma unroll
  for (int step = 0; step < 4; ++step) {
    // In step i, lane t sends block t ^ i to lane t ^ i and receives its own block from there.
    const int give = t ^ step;
    const std::uint32_t mine = give == 0 ? r[0] : give == 1 ? r[1] : give == 2 ? r[2] : r[3];
    const std::uint32_t got = __shfl_xor_sync(0xffffffffu, mine, step);
#pragma unroll
    for (int i = 0; i < 4; ++i)
      if (i == give) out[i] = got;
  }
  return {out[0], out[1], out[2], out[3]};
}

// Writes one of a lane's two accumulator rows (half: 0 or 1) to row `row` of a tensor, as c * factor +
// carry * kept. The carry is not read if `kept` is 0. All lanes of a warp must call it together; a lane with
// exists = false neither reads nor writes.
template <int kDim>
__device__ inline void write_row(const Sums<kDim>& c, int half, float factor, float kept, const Output& to,
                                 std::int64_t row, int head, int columns, bool exists) {
  const int t = static_cast<int>(threadIdx.x) % 4;
  const float* carry = to.carry.data ? to.carry.at(row, head) + 2 * t : nullptr;
#pragma unroll
  for (int block = 0; block < kDim / 8; block += 4) {
    float x[4][2];
#pragma unroll
    for (int b = 0; b < 4; ++b) {
      x[b][0] = c[4 * (block + b) + 2 * half] * factor, x[b][1] = c[4 * (block + b) + 2 * half + 1] * factor;
      const int column = (block + b) * 8;
      if (exists && carry && kept != 0 && column < columns) {
        const float2 before = *reinterpret_cast<const float2*>(carry + column);
        x[b][0] = fmaf(before.x, kept, x[b][0]), x[b][1] = fmaf(before.y, kept, x[b][1]);
      }
    }
    if (to.half.data) {
      const std::uint32_t packed[4] = {pack_bf16(x[0][0], x[0][1]), pack_bf16(x[1][0], x[1][1]),
                                       pack_bf16(x[2][0], x[2][1]), pack_bf16(x[3][0], x[3][1])};
      const uint4 whole = exchange(packed);
      if (exists && (block + t) * 8 < columns)
        *reinterpret_cast<uint4*>(to.half.at(row, head) + (block + t) * 8) = whole;
    } else {
#pragma unroll
      for (int b = 0; b < 4; ++b)
        if (exists && (block + b) * 8 < columns)
          *reinterpret_cast<float2*>(to.whole.at(row, head) + (block + b) * 8 + 2 * t) = make_float2(x[b][0], x[b][1]);
    }
  }
}

// The 16 rows that a warp writes at the end of a job. Each lane has two of these rows, 8 apart.
struct WarpRows {
  int first, begin, end;  // rows [begin, end) are valid
  int head, rate;
  std::int64_t token_of_0;
  int lane = thread_again() % 32;
  template <int kConsumers>
  __device__ WarpRows(const Job<kConsumers>& job, int first, int token_of_0)
      : first(first), begin(job.first), end(job.end), head(job.head), rate(job.segment.rate), token_of_0(token_of_0) {}
  __device__ int row(int half) const { return first + lane / 4 + 8 * half; }
  __device__ bool exists(int row) const { return row >= begin && row < end; }
  __device__ std::int64_t token(int row) const { return token_of_0 + std::int64_t{row} * rate; }
};

// Staging buffer in shared memory: a warp's 16 rows of a tile. No other warp may be using these rows.
template <int kDim, int kRows>
struct StagedRows {
  using Tile = SmemTile<Bf16, kRows, kDim>;
  unsigned char* bytes;
  int first;  // first row in the tile, a multiple of 16
  int lane = thread_again() % 32;

  __device__ StagedRows(Tile& tile, int first) : bytes(tile.data), first(first) {}
  __device__ int place(int row, int chunk) const { return Tile::View::offset(first, row, chunk); }
  __device__ void store(const Sums<kDim>& out, const float (&factor)[2]) const {
#pragma unroll
    for (int b = 0; b < kDim / 8; b += 2) {
      const float* c = out.data + 4 * b;
      const std::uint32_t r[4] = {
          pack_bf16(c[0] * factor[0], c[1] * factor[0]), pack_bf16(c[2] * factor[1], c[3] * factor[1]),
          pack_bf16(c[4] * factor[0], c[5] * factor[0]), pack_bf16(c[6] * factor[1], c[7] * factor[1])};
      stmatrix(shared_address(bytes) + place(lane % 16, b + lane / 16), r);
    }
  }
  // Copies the rows to global memory, a whole row at a time.
  __device__ void copy_out(const Output& out, int columns, const WarpRows& rows) const {
    constexpr int kChunks = kDim / 8, kStep = 32 / kChunks;  // 16-byte chunks per row; rows per step
    const int chunk = lane % kChunks, mine = lane / kChunks;
    __nv_bfloat16* to = out.half.at(rows.token(rows.first + mine), rows.head) + chunk * 8;
    const std::int64_t step = out.half.row * rows.rate * kStep;
#pragma unroll
    for (int i = 0; i < 16; i += kStep, to += step) {
      const uint4 x = *reinterpret_cast<const uint4*>(bytes + place(mine + i, chunk));
      if (chunk * 8 < columns && rows.exists(rows.first + mine + i)) *reinterpret_cast<uint4*>(to) = x;
    }
  }
};

}  // namespace ring::cuda::sm90
