// Sorts ids. This is a separate file because CUB takes long to compile.
#include "kernels/cuda/sort_ids.h"

#include <bit>
#include <cub/device/device_radix_sort.cuh>

#include "kernels/cuda/device/vec.cuh"
#include "kernels/cuda/launch.h"

namespace ring::cuda {
namespace {

__global__ void number_ids(const std::int32_t* ids, int count, std::int64_t first_id, int rows, std::uint32_t* keys,
                           std::int32_t* positions) {
  const std::int64_t n = thread_x();
  if (n >= count) return;
  const std::int64_t row = ids[n] - first_id;
  keys[n] = static_cast<std::uint32_t>(row >= 0 && row < rows ? row : rows);
  positions[n] = static_cast<std::int32_t>(n);
}

}  // namespace

SortedIds sort_ids(const Tensor& ids, std::int64_t first_id, std::int64_t rows, const ExecContext& ctx) {
  const std::int64_t n = ids.numel();
  RING_CHECK(n <= INT32_MAX && rows < INT32_MAX, "embedding: ", n, " ids of a table of ", rows, " rows");
  const auto count = static_cast<int>(n);
  const Tensor keys = ctx.empty({n}, DType::i32), places = ctx.empty({n}, DType::i32);
  SortedIds sorted{ctx.empty({n}, DType::i32), ctx.empty({n}, DType::i32)};
  if (n == 0) return sorted;
  auto* from = reinterpret_cast<std::uint32_t*>(keys.raw());
  launch(ctx, {grid_of(divide_up(n, kBlock))}, number_ids, ids.data<std::int32_t>(), count, first_id,
         static_cast<int>(rows), from, places.data<std::int32_t>());
  const int bits = std::bit_width(static_cast<std::uint32_t>(rows));  // `rows` is a valid key, too
  const auto stream = static_cast<cudaStream_t>(ctx.stream.native());
  std::size_t bytes = 0;
  const auto sort = [&](void* scratch) {
    RING_CUDA_CHECK(cub::DeviceRadixSort::SortPairs(
        scratch, bytes, from, reinterpret_cast<std::uint32_t*>(sorted.ids.raw()), places.data<std::int32_t>(),
        sorted.positions.data<std::int32_t>(), count, 0, bits, stream));
  };
  sort(nullptr);  // with null memory it only sets `bytes`
  const Tensor scratch = ctx.empty({std::max<std::int64_t>(1, static_cast<std::int64_t>(bytes))}, DType::u8);
  sort(scratch.raw());
  return sorted;
}

}  // namespace ring::cuda
