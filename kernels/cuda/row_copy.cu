#include "kernels/row_copy.h"

#include "kernels/cuda/launch.h"

namespace ring::cuda {
namespace {

using BytePack = uint4;  // unit that a thread copies at a time
constexpr auto kPackBytes = static_cast<std::int64_t>(sizeof(BytePack));
constexpr int kCopyUnroll = 4;  // rows that a thread has in flight
constexpr std::int64_t kMaxRows = std::int64_t{1} << 31;

struct CopyParams {
  const BytePack* from;
  BytePack* to;
  std::int64_t from_row, from_part, to_row, to_part;  // strides
  std::uint32_t count, parts;                         // count: rows * parts
  std::int64_t width;
};

__device__ std::int64_t at(std::uint32_t n, std::uint32_t parts, std::int64_t row, std::int64_t part) {
  return n / parts * row + n % parts * part;
}

// Threads: x over the packs of one part of a row, y over the parts of all rows.
__global__ void copy_packs(CopyParams r) {
  for (std::int64_t x = thread_x(); x < r.width; x += threads_x())
    for (std::int64_t i = thread_y(); i < r.count; i += kCopyUnroll * threads_y()) {
      BytePack held[kCopyUnroll];
#pragma unroll
      for (int j = 0; j < kCopyUnroll; ++j) {
        const std::int64_t n = i + j * threads_y();
        if (n < r.count) held[j] = r.from[at(static_cast<std::uint32_t>(n), r.parts, r.from_row, r.from_part) + x];
      }
#pragma unroll
      for (int j = 0; j < kCopyUnroll; ++j) {
        const std::int64_t n = i + j * threads_y();
        if (n < r.count) r.to[at(static_cast<std::uint32_t>(n), r.parts, r.to_row, r.to_part) + x] = held[j];
      }
    }
}

bool of_packs(const RowBytes& b) {
  const auto whole = [](const RowBytes::Side& s) {
    return reinterpret_cast<std::uintptr_t>(s.data) % kPackBytes == 0 && s.row % kPackBytes == 0 &&
           s.part % kPackBytes == 0;
  };
  return b.width % kPackBytes == 0 && whole(b.dst) && whole(b.src);
}

void run(const CopyRows& args, const ExecContext& ctx) {
  check(args);
  if (args.rows.count == 0) return;
  const RowBytes b = bytes_of(args);
  if (b.rows * b.parts == 1 || b.rows * b.parts > kMaxRows || !of_packs(b)) return copy_rows_by_stream(args, ctx);
  const CopyParams r{reinterpret_cast<const BytePack*>(b.src.data),
                     reinterpret_cast<BytePack*>(b.dst.data),
                     b.src.row / kPackBytes,
                     b.src.part / kPackBytes,
                     b.dst.row / kPackBytes,
                     b.dst.part / kPackBytes,
                     static_cast<std::uint32_t>(b.rows * b.parts),
                     static_cast<std::uint32_t>(b.parts),
                     b.width / kPackBytes};
  Launch shape = rows_by(divide_up(std::int64_t{r.count}, std::int64_t{kCopyUnroll}), r.width);
  shape.grid.x = std::min(shape.grid.x, 1u << 16);
  launch(ctx, shape, copy_packs, r);
}

const bool added_row_copy = copy_rows_kernel.add(Backend::cuda, {"packs", run});

}  // namespace
}  // namespace ring::cuda
