#include "kernels/rope.h"

#include "kernels/cuda/device/rotation.cuh"
#include "kernels/cuda/device/vec.cuh"
#include "kernels/cuda/launch.h"

namespace ring::cuda {
namespace {

constexpr int kUnroll = 4;                 // pairs of packs that a thread has in flight
constexpr std::int64_t kMaxAngles = 4096;  // maximum angles per thread block, in shared memory

template <class T>
struct RopeArgs {
  StridedRows<T> x, out;  // the outer dim is tokens, the inner dim heads
  const std::int32_t* positions;
  const float* inv_freq;
  std::uint32_t tokens, tile;  // tile: tokens per thread block
  Divider heads, half, half_packs;
  float sign, beta;
};

template <int n>
__device__ inline Floats<n> read_floats(const float* shared) {
  Floats<n> f;
#pragma unroll
  for (int j = 0; j < n; j += 4) {
    const float4 v = *reinterpret_cast<const float4*>(shared + j);
    f.v[j] = v.x, f.v[j + 1] = v.y, f.v[j + 2] = v.z, f.v[j + 3] = v.w;
  }
  return f;
}

// A work item: a pack in the first half of a head, and its partner in the second half.
template <class T>
struct Item {
  bool inside;
  std::uint32_t token, head, column;  // token: index in the tile; column: index in a half of the head

  __device__ Item(const RopeArgs<T>& a, std::uint32_t at, std::uint32_t items) {
    const std::uint32_t row = a.half_packs.quotient(at);
    inside = at < items;
    column = (at - row * a.half_packs.divisor) * kPack<T>;
    token = a.heads.quotient(row);
    head = row - token * a.heads.divisor;
  }
  __device__ T* in(const StridedRows<T>& rows, std::uint32_t first_token) const {
    return rows.at(first_token + token, head) + column;
  }
};

// Each thread block rotates a tile of tokens. Sines and cosines are computed once per token and pair, into shared
// memory, while the loads of the first items are in flight.
template <class T>
__global__ void __launch_bounds__(kBlock, 4) rope_packs(RopeArgs<T> a) {
  constexpr int size = kPack<T>;
  extern __shared__ __align__(16) float cosines[];
  float* sines = cosines + a.tile * a.half.divisor;
  const std::uint32_t half = a.half.divisor, first = blockIdx.x * a.tile, tokens = min(a.tile, a.tokens - first);
  const std::uint32_t items = tokens * a.heads.divisor * a.half_packs.divisor;
  Pack<T> low[kUnroll], high[kUnroll];
  auto load_items = [&](std::uint32_t base) {
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      const Item<T> item(a, base + u * kBlock + threadIdx.x, items);
      const T* from = item.in(a.x, first);
      low[u] = item.inside ? load_pack(from) : Pack<T>{};
      high[u] = item.inside ? load_pack(from + half) : Pack<T>{};
    }
  };
  load_items(0);
  for (std::uint32_t i = threadIdx.x; i < tokens * half; i += kBlock) {
    const std::uint32_t token = a.half.quotient(i);
    const Rotation r = rotation(a.positions[first + token], a.inv_freq[i - token * half], a.sign);
    cosines[i] = r.cosine;
    sines[i] = r.sine;
  }
  __syncthreads();
  for (std::uint32_t base = 0;;) {
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      const Item<T> item(a, base + u * kBlock + threadIdx.x, items);
      if (!item.inside) continue;
      const Floats<size> c = read_floats<size>(cosines + item.token * half + item.column);
      const Floats<size> s = read_floats<size>(sines + item.token * half + item.column);
      Floats<size> x = unpack(low[u]), y = unpack(high[u]);
      T* to = item.in(a.out, first);
#pragma unroll
      for (int j = 0; j < size; ++j) {
        const float rotated = x.v[j] * c.v[j] - y.v[j] * s.v[j];
        y.v[j] = y.v[j] * c.v[j] + x.v[j] * s.v[j];
        x.v[j] = rotated;
      }
      if (a.beta != 0) {
        const Floats<size> old_x = unpack(load_pack(to)), old_y = unpack(load_pack(to + half));
#pragma unroll
        for (int j = 0; j < size; ++j) x.v[j] += a.beta * old_x.v[j], y.v[j] += a.beta * old_y.v[j];
      }
      store_pack(to, pack<T>(x));
      store_pack(to + half, pack<T>(y));
    }
    base += kUnroll * kBlock;
    if (base >= items) break;
    load_items(base);
  }
}

// For any even width and any alignment. A thread rotates the same pair in every head of a token.
template <class T>
__global__ void rope_pairs(RopeArgs<T> a) {
  const std::int64_t half = a.half.divisor;
  for (std::int64_t n = thread_y(); n < a.tokens; n += threads_y())
    for (std::int64_t i = thread_x(); i < half; i += threads_x()) {
      const Rotation r = rotation(a.positions[n], a.inv_freq[i], a.sign);
      for (std::uint32_t h = 0; h < a.heads.divisor; ++h) {
        const T* from = a.x.at(static_cast<std::uint32_t>(n), h) + i;
        const float x = to_float(*from), y = to_float(from[half]);
        T* to = a.out.at(static_cast<std::uint32_t>(n), h) + i;
        const float low = x * r.cosine - y * r.sine, high = y * r.cosine + x * r.sine;
        const float old_low = a.beta == 0 ? 0.0f : a.beta * to_float(*to);
        const float old_high = a.beta == 0 ? 0.0f : a.beta * to_float(to[half]);
        *to = from_float<T>(old_low + low);
        to[half] = from_float<T>(old_high + high);
      }
    }
}

template <class T>
StridedRows<T> heads_of(const Tensor& t) {
  return {device_data<T>(t), t.stride(0), t.stride(1)};
}
template <class T>
bool heads_of_packs(const StridedRows<T>& rows) {
  return is_aligned(rows.data) && rows.outer_stride % kPack<T> == 0 && rows.inner_stride % kPack<T> == 0;
}

template <class T>
void launch_rope(const Rope& args, const ExecContext& ctx) {
  const std::int64_t tokens = args.x.dim(0), heads = args.x.dim(1), half = args.x.dim(2) / 2;
  if (args.x.numel() == 0) return;
  RopeArgs<T> a{};
  a.x = heads_of<T>(args.x);
  a.out = heads_of<T>(args.out);
  a.positions = args.positions.data<std::int32_t>();
  a.inv_freq = args.inv_freq.data<float>();
  a.heads = divider_of("rope", tokens, heads);
  a.half = Divider(static_cast<std::uint32_t>(half));
  a.tokens = static_cast<std::uint32_t>(tokens);
  a.sign = args.inverse ? -1.0f : 1.0f;
  a.beta = args.beta;
  if (half % kPack<T> != 0 || half > kMaxAngles || !heads_of_packs(a.x) || !heads_of_packs(a.out))
    return launch(ctx, rows_by(tokens, half), rope_pairs<T>, a);
  const std::int64_t half_packs = half / kPack<T>, token_items = heads * half_packs;
  const std::int64_t tile = std::clamp(kUnroll * kBlock / token_items, std::int64_t{1}, kMaxAngles / half);
  a.half_packs = Divider(static_cast<std::uint32_t>(half_packs));
  a.tile = static_cast<std::uint32_t>(tile);
  const auto shared_bytes = static_cast<std::size_t>(2 * tile * half) * sizeof(float);
  launch(ctx, {grid_of(divide_up(tokens, tile)), kBlock, shared_bytes}, rope_packs<T>, a);
}

void run_rope(const Rope& args, const ExecContext& ctx) {
  check_rope(args);
  visit_float("rope", args.x.dtype(), [&]<class T>() { launch_rope<T>(args, ctx); });
}

const bool added_rope = rope_kernel.add(Backend::cuda, {"tiles", run_rope});

}  // namespace
}  // namespace ring::cuda
