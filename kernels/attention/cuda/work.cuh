#pragma once
// How the CUDA attention kernels cut their work: each thread block owns a block of rows (queries, or keys and values)
// of one head of one sequence and streams tiles of the other side past it.

#include <cuda_bf16.h>

#include <cmath>

#include "kernels/attention/attention.h"
#include "kernels/cuda/launch.h"

namespace ring::cuda {

constexpr float kLog2E = 1.4426950408889634f, kLn2 = 0.6931471805599453f;

// A tensor [N,H,D] with unit last stride.
template <class T>
struct HeadsOf {
  T* data;
  std::int64_t row, head;  // strides
  __device__ T* at(std::int64_t token, int h) const { return data + token * row + h * head; }
};
template <class T>
HeadsOf<T> heads_of(const Tensor& t) {
  return {reinterpret_cast<T*>(t.raw()), t.stride(0), t.stride(1)};
}

enum class Owner { queries, keys };  // what a thread block owns

struct RowBlock {
  std::int32_t start, length;  // the sequence: its first token, its tokens
  std::int32_t row;            // first of the block, within the sequence
};

// What block `index` of the grid owns: from a list, or by arithmetic where all sequences are of one length.
struct Work {
  const RowBlock* list;  // null: by arithmetic
  int heads;
  int pairs, start, length;  // pairs of sequence and head
  int rows, row_blocks;      // of a block; blocks of a sequence
  int section;               // pairs whose keys and values share the L2 cache: done before the next ones start
  bool last_first;           // the last rows of a sequence cost most: they start first
  struct Place : RowBlock {
    int head;
  };
  __device__ Place operator[](unsigned index) const {
    if (list) {
      const RowBlock b = list[index / heads];
      return {b, static_cast<int>(index % heads)};
    }
    const unsigned per_section = static_cast<unsigned>(section) * row_blocks, s = index / per_section;
    const unsigned in_section = index - s * per_section, here = min(section, pairs - static_cast<int>(s) * section);
    const int block = static_cast<int>(in_section / here), pair = static_cast<int>(s * section + in_section % here);
    const int ordered = last_first ? row_blocks - 1 - block : block;
    return {{start + pair / heads * length, length, ordered * rows}, pair % heads};
  }
};

struct BlockPlan {
  Work work;
  std::int64_t blocks;  // of the grid
  Tensor list;          // keeps work.list
};
// Costliest blocks first (Graham 1969). stream_bytes: of one token's rows that a block of one head streams.
BlockPlan plan_blocks(const std::vector<std::int32_t>& offsets, Owner, int heads, int rows, bool causal,
                      std::int64_t stream_bytes, const Context&);

// The tiles that a block streams: of several heads, one after the other, rows from `first` to `end`. What kinds of
// attention with other patterns change is this and the mask.
struct Tiles {
  struct Place {
    int head, row;
  };
  int first, end, step, count;
  __device__ Tiles(int first, int end, int step, int heads)
      : first(first), end(end), step(step), count((end - first + step - 1) / step * heads) {}
  __device__ Place begin() const { return {0, first}; }
  __device__ Place after(Place p) const {
    p.row += step;
    return p.row < end ? p : Place{p.head + 1, first};
  }
};

// Which pairs of a tile count. Rows and columns are positions within the sequence.
template <Owner owner>
struct Mask {
  int length;
  bool causal;
  // Of the 16 kM rows from `row` on and `width` columns from `column` on: none, or all.
  __device__ bool none(int row, int rows, int column, int width) const {
    return causal && (owner == Owner::keys ? column + width - 1 < row : column > row + rows - 1);
  }
  __device__ bool all(int row, int rows, int column, int width) const {
    if (owner == Owner::keys) return !causal || column >= row + rows - 1;  // queries beyond the end are zeros
    return column + width <= (causal ? min(row + 1, length) : length);
  }
  __device__ bool operator()(int row, int column) const {
    if (owner == Owner::keys) return !causal || column >= row;
    return column < (causal ? min(row + 1, length) : length);
  }
};

// Shapes and types that every CUDA kernel of the family needs. Errors name the tensor.
void check(const Attention&);
void check(const AttentionBackward&);

// out = 0 and lse = -inf for tokens of no sequence.
void fill_outside(const Attention&, const Context&);
void fill_outside(const AttentionBackward&, const Context&);

// What both backward kernels read beside the operands, each [Hq,N] f32: delta = rowsum(dout * out), and lse in powers
// of two with +inf for rows without keys, so that their weights come out as 0.
struct RowStatistics {
  Tensor lse2, delta;
};
RowStatistics row_statistics(const AttentionBackward&, const Context&);

// The tensor-core kernels, for heads of up to kDim: one translation unit each.
template <int kDim>
void run_mma_forward(const Attention&, const Context&);
template <int kDim>
void run_mma_backward(const AttentionBackward&, const Context&);

}  // namespace ring::cuda
