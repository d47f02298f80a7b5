#include "kernels/embedding.h"

#include "kernels/cuda/device/rows.cuh"
#include "kernels/cuda/device/vec.cuh"
#include "kernels/cuda/launch.h"

namespace ring::cuda {
namespace {

template <class T>
struct Table {
  const T* data;
  std::int64_t rows, width;
  std::int64_t first_id, all_rows;
};

constexpr int kAtOnce = 4;  // packs that a thread has in flight

// A thread block copies the packs of `tokens_per_block` rows as if they were a single row, so that all
// threads are busy at any width.
template <class T, int n>
__global__ void embed(const std::int32_t* ids, Table<T> table, T* out, std::int64_t tokens, int tokens_per_block,
                      Divider packs, bool add) {
  const std::int64_t first = std::int64_t{blockIdx.x} * tokens_per_block;
  const int count =
      static_cast<int>(min(tokens - first, std::int64_t{tokens_per_block})) * static_cast<int>(packs.divisor);
  Floats<n> unknown;  // row of an unknown id: NaN, so that the step is rejected as not finite and weights do not change
#pragma unroll
  for (float& v : unknown.v) v = __int_as_float(0x7fffffff);
  out += first * table.width;
  for (int begin = static_cast<int>(threadIdx.x); begin < count; begin += kBlock * kAtOnce) {
    Pack<T, n> rows[kAtOnce];
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {  // reloads the last pack past the end, which avoids a branch
      const auto at = static_cast<std::uint32_t>(min(begin + i * kBlock, count - 1)), token = packs.quotient(at);
      const std::int64_t id = ids[first + token], row = id - table.first_id;
      const bool here = row >= 0 && row < table.rows, elsewhere = id >= 0 && id < table.all_rows;
      rows[i] = load_pack<T, n>(table.data + (here ? row : 0) * table.width + (at - token * packs.divisor) * n);
      if (!here) rows[i] = elsewhere ? Pack<T, n>{} : pack<T>(unknown);
    }
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      if (begin + i * kBlock >= count) break;
      T* to = out + std::int64_t{begin + i * kBlock} * n;
      if (add) {
        Floats<n> sum = unpack(rows[i]);
        const Floats<n> old = unpack(load_pack<T, n>(to));
#pragma unroll
        for (int j = 0; j < n; ++j) sum.v[j] += old.v[j];
        rows[i] = pack<T>(sum);
      }
      store_pack(to, rows[i]);
    }
  }
}

template <class T, int n>
void run_packs(const Embedding& args, const ExecContext& ctx) {
  const std::int64_t tokens = args.ids.numel(), width = args.table.dim(1), packs = width / n;
  const auto tokens_per_block = static_cast<int>(std::max<std::int64_t>(1, 2 * kBlock * kAtOnce / packs));
  launch(ctx, {grid_of(divide_up(tokens, tokens_per_block))}, embed<T, n>, args.ids.data<std::int32_t>(),
         Table<T>{device_data<T>(args.table), args.table.dim(0), width, args.first_id,
                  rows_of_whole("embedding", args.table, args.first_id, args.all_rows)},
         device_data<T>(args.out), tokens, tokens_per_block, Divider(static_cast<std::uint32_t>(packs)), args.add);
}

void run_embedding(const Embedding& args, const ExecContext& ctx) {
  const Tensor& table = args.table;
  RING_CHECK(table.shape().size() == 2 && table.is_contiguous() && table.dim(0) > 0 && table.dim(1) <= 1 << 30,
             "embedding: the table is ", describe(table));
  RING_CHECK(args.ids.is_contiguous(), "embedding: ids are strided");
  const std::int64_t tokens = args.ids.numel(), width = table.dim(1);
  check_shape("embedding", "out", args.out, {tokens, width});
  check_numel("embedding", "out", args.out, tokens * width);
  if (tokens * width == 0) return;
  visit_float("embedding", table.dtype(), [&]<class T>() {
    if (width % kPack<T> == 0 && is_aligned(table.raw()) && is_aligned(args.out.raw()))
      run_packs<T, kPack<T>>(args, ctx);
    else
      run_packs<T, 1>(args, ctx);
  });
}

const bool added_embedding = embedding_kernel.add(Backend::cuda, {"packs", run_embedding});

}  // namespace
}  // namespace ring::cuda
