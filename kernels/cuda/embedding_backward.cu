// Sorts positions by id, so that the rows of one id are adjacent: a run. Runs are split into chunks of fixed
// length. One thread block sums the runs of its chunk in order, and a second kernel adds the partial sums of runs
// that cross chunks. The order of summation thus depends only on the ids, and an id that has half of all tokens is
// spread over many thread blocks.
#include "kernels/cuda/device/vec.cuh"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/sort_ids.h"
#include "kernels/embedding.h"

namespace ring::cuda {
namespace {

constexpr int kChunk = 32;        // positions per thread block
constexpr int kRowsInFlight = 8;  // rows that a thread has in flight
constexpr int kSlots = 2;  // partial sums per chunk: kIn: of a run from the chunk before; kOut: of a run into the next
constexpr int kIn = 0, kOut = 1;

struct Sorted {
  const std::int32_t *ids, *positions;
  int count, rows;  // rows: rows of the table; an id equal to `rows` is not in the table and is skipped
};

// Scales the rows that no id refers to by beta (0 clears them). One warp per row.
template <class D>
__global__ void scale_untouched(const std::uint8_t* touched, D* dtable, std::int64_t rows, std::int64_t width,
                                float beta) {
  const std::int64_t row = std::int64_t{blockIdx.x} * (kBlock / kWarp) + threadIdx.x / kWarp;
  if (row >= rows || touched[row]) return;
  D* to = dtable + row * width;
  for (std::int64_t c = threadIdx.x % kWarp * kPack<D>; c < width; c += kWarp * kPack<D>) {
    Floats<kPack<D>> f{};
    if (beta != 0) f = load(static_cast<const D*>(to), c, width);
#pragma unroll
    for (float& v : f.v) v *= beta;
    store(to, c, width, f);
  }
}

__global__ void mark_touched(const std::int32_t* ids, std::int64_t count, std::int64_t first_id, std::int64_t rows,
                             std::uint8_t* touched) {
  const std::int64_t n = thread_x(), row = n < count ? ids[n] - first_id : -1;
  if (row >= 0 && row < rows) touched[row] = 1;
}

template <class D, int n>
__device__ void add_to_row(D* to, float beta, Floats<n> sum) {
  if (beta != 0) {
    const Floats<n> old = unpack(load_pack<D, n>(to));
#pragma unroll
    for (int j = 0; j < n; ++j) sum.v[j] += beta * old.v[j];
  }
  store_pack(to, pack<D>(sum));
}

template <class T, class D>
struct EmbeddingOperands {
  Sorted sorted;
  const T* dout;
  D* dtable;
  float* parts;  // [chunks, kSlots, width]
  std::int64_t width;
  float beta;
};

// Writes the sum of a run to the table, or to one of the chunk's partial sums if the run crosses chunks.
template <class T, class D, int n>
__device__ void put(const EmbeddingOperands<T, D>& a, std::int64_t column, int id, bool from_before, bool goes_on,
                    const Floats<n>& sum) {
  if (id == a.sorted.rows) return;
  if (!from_before && !goes_on) return add_to_row(a.dtable + id * a.width + column, a.beta, sum);
  float* slot = a.parts + (std::int64_t{blockIdx.x} * kSlots + (from_before ? kIn : kOut)) * a.width + column;
  store_pack(slot, pack<float>(sum));
}

template <class T, class D, int n>
__global__ void __launch_bounds__(kBlock) sum_chunks(EmbeddingOperands<T, D> a) {
  __shared__ std::int32_t ids[kChunk + 1], positions[kChunk];
  const int begin = static_cast<int>(blockIdx.x) * kChunk, count = min(kChunk, a.sorted.count - begin);
  const int thread = static_cast<int>(threadIdx.x);
  if (thread < kChunk) {
    ids[thread] = thread < count ? a.sorted.ids[begin + thread] : -1;
    positions[thread] = thread < count ? a.sorted.positions[begin + thread] : 0;
    if (thread == 0) ids[count] = begin + count < a.sorted.count ? a.sorted.ids[begin + count] : -1;
  }
  const int before = begin > 0 ? a.sorted.ids[begin - 1] : -1;
  __syncthreads();
  const std::int64_t column = (std::int64_t{blockIdx.y} * blockDim.x + threadIdx.x) * n;
  if (column >= a.width) return;
  Floats<n> sum{};
  bool from_before = ids[0] == before;
  for (int k = 0; k < count; k += kRowsInFlight) {
    Pack<T, n> packs[kRowsInFlight];
#pragma unroll
    for (int i = 0; i < kRowsInFlight; ++i)  // past the end it loads the last row again, which avoids a branch
      packs[i] = load_pack<T, n>(a.dout + positions[min(k + i, count - 1)] * a.width + column);
#pragma unroll
    for (int i = 0; i < kRowsInFlight; ++i) {
      if (k + i >= count) break;
      const Floats<n> f = unpack(packs[i]);
#pragma unroll
      for (int j = 0; j < n; ++j) sum.v[j] += f.v[j];
      const bool same = ids[k + i] == ids[k + i + 1], last = k + i + 1 == count;
      if (same && !last) continue;
      put(a, column, ids[k + i], from_before, same, sum);
      from_before = false;
      sum = Floats<n>{};
    }
  }
}

// Returns the first sorted position with a larger id.
__device__ inline int end_of_run(const Sorted& s, int id, int from) {
  int low = from, high = s.count;
  while (low < high) {
    const int middle = low + (high - low) / 2;
    if (s.ids[middle] <= id)
      low = middle + 1;
    else
      high = middle;
  }
  return low;
}

constexpr int kJoinLanes = 64, kJoinRows = kBlock / kJoinLanes;

// Thread block c completes the run that begins in chunk c and continues in later chunks, if there is such a run: it
// adds the chunk's kOut, and then the kIn of each later chunk of the run.
template <class T, class D, int n>
__global__ void __launch_bounds__(kBlock) join_chunks(EmbeddingOperands<T, D> a) {
  const Sorted& s = a.sorted;
  const int chunk = static_cast<int>(blockIdx.x), begin = chunk * kChunk, end = begin + kChunk;
  if (end >= s.count) return;
  const int id = s.ids[end - 1];
  const bool from_before = begin > 0 && s.ids[begin - 1] == id;
  if (id == s.rows || s.ids[end] != id || from_before) return;
  const int chunks = (end_of_run(s, id, end) - 1) / kChunk - chunk;  // chunks of the run after its first
  const std::int64_t column = (std::int64_t{blockIdx.y} * kJoinLanes + threadIdx.x) * n;
  const int thread_y = static_cast<int>(threadIdx.y);
  __shared__ float shared[kJoinRows][kJoinLanes][n];
  Floats<n> sum{};
  if (column < a.width) {
    const float* parts = a.parts + std::int64_t{chunk} * kSlots * a.width + column;
    if (thread_y == 0) sum = unpack(load_pack<float, n>(parts + kOut * a.width));
#pragma unroll 8
    for (int c = 1 + thread_y; c <= chunks; c += kJoinRows) {
      const Floats<n> f = unpack(load_pack<float, n>(parts + (std::int64_t{c} * kSlots + kIn) * a.width));
#pragma unroll
      for (int j = 0; j < n; ++j) sum.v[j] += f.v[j];
    }
  }
#pragma unroll
  for (int j = 0; j < n; ++j) shared[thread_y][threadIdx.x][j] = sum.v[j];
  __syncthreads();
  if (thread_y != 0 || column >= a.width) return;
  for (int y = 1; y < kJoinRows; ++y)
#pragma unroll
    for (int j = 0; j < n; ++j) sum.v[j] += shared[y][threadIdx.x][j];
  add_to_row(a.dtable + id * a.width + column, a.beta, sum);
}

template <class T, class D, int n>
void run_packs(EmbeddingOperands<T, D> a, const ExecContext& ctx) {
  const std::int64_t chunks = divide_up(a.sorted.count, kChunk), packs = a.width / n;
  const std::int64_t threads = std::min<std::int64_t>(kBlock, divide_up(packs, kWarp) * kWarp);
  const Tensor parts = ctx.empty({chunks * kSlots, a.width});
  a.parts = parts.data<float>();
  launch(ctx, {grid_of(chunks, divide_up(packs, threads)), static_cast<unsigned>(threads)}, sum_chunks<T, D, n>, a);
  constexpr int joined = n == 1 ? 1 : 4;
  launch(ctx, {grid_of(chunks, divide_up(a.width, joined * kJoinLanes)), {kJoinLanes, kJoinRows}},
         join_chunks<T, D, joined>, a);
}

template <class T, class D>
void run_types(const EmbeddingBackward& args, const ExecContext& ctx) {
  const std::int64_t tokens = args.ids.numel(), rows = args.dtable.dim(0), width = args.dtable.dim(1);
  if (rows * width == 0) return;
  EmbeddingOperands<T, D> a{};
  a.dout = device_data<T>(args.dout);
  a.dtable = device_data<D>(args.dtable);
  a.width = width;
  a.beta = args.beta;
  if (args.beta != 1) {
    const Tensor touched = ctx.zeros({rows}, DType::u8);
    launch(ctx, {grid_of(divide_up(tokens, kBlock))}, mark_touched, args.ids.data<std::int32_t>(), tokens,
           args.first_id, rows, touched.data<std::uint8_t>());
    launch(ctx, {grid_of(divide_up(rows, kBlock / kWarp))}, scale_untouched<D>, touched.data<std::uint8_t>(), a.dtable,
           rows, width, args.beta);
  }
  if (tokens == 0) return;
  const SortedIds sorted = sort_ids(args.ids, args.first_id, rows, ctx);
  a.sorted = {sorted.ids.data<std::int32_t>(), sorted.positions.data<std::int32_t>(), static_cast<int>(tokens),
              static_cast<int>(rows)};
  if (width % kPack<T> == 0 && is_aligned(a.dout) && is_aligned(a.dtable))
    run_packs<T, D, kPack<T>>(a, ctx);
  else
    run_packs<T, D, 1>(a, ctx);
}

template <class T>
void visit_table(const EmbeddingBackward& args, const ExecContext& ctx) {
  visit_float("embedding_backward", args.dtable.dtype(), [&]<class D>() { run_types<T, D>(args, ctx); });
}

void run_embedding_backward(const EmbeddingBackward& args, const ExecContext& ctx) {
  const char* op = "embedding_backward";
  RING_CHECK(args.dtable.shape().size() == 2 && args.dtable.is_contiguous(), op, ": the table is ",
             describe(args.dtable));
  RING_CHECK(args.ids.is_contiguous(), op, ": ids are strided");
  rows_of_whole(op, args.dtable, args.first_id, args.all_rows);
  check_shape(op, "dout", args.dout, {args.ids.numel(), args.dtable.dim(1)});
  check_numel(op, "dout", args.dout, args.ids.numel() * args.dtable.dim(1));
  visit_float(op, args.dout.dtype(), [&]<class T>() { visit_table<T>(args, ctx); });
}

const bool added_embedding_backward = embedding_backward_kernel.add(Backend::cuda, {"sorted", run_embedding_backward});

}  // namespace
}  // namespace ring::cuda
